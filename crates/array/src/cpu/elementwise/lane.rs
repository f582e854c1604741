//! Which kernel each of the fifteen element types uses: its own, or the f32 one between conversions.

use super::integer::{self, Int};
use super::{binary, grad, unary, widened1, widened2};
use crate::convert::Number;
use crate::cpu::map::{Kernel1, Kernel2};
use crate::element::Bool;
use crate::float8::{F8E4M3, F8E5M2};
use crate::ops::{Activation, Binary, Compare, Unary};
use half::{bf16, f16};

/// An element type as elementwise kernels see it. Each function hands the chosen kernel to `run`, or gives
/// `None` when the operation is not defined for the type.
pub(crate) trait Lane: Number {
    /// True for zero: a divisor that integers refuse.
    fn is_zero_divisor(self) -> bool {
        false
    }
    fn unary<R>(_: Unary, _: impl FnOnce(Kernel1<'_, Self, Self>) -> R) -> Option<R> {
        None
    }
    fn complement<R>(_: impl FnOnce(Kernel1<'_, Self, Self>) -> R) -> Option<R> {
        None
    }
    fn binary<R>(op: Binary, run: impl FnOnce(Kernel2<'_, Self, Self, Self>) -> R) -> Option<R>;
    fn compare<R>(op: Compare, run: impl FnOnce(Kernel2<'_, Self, Self, Bool>) -> R) -> R;
    fn grad<R>(_: Activation, _: impl FnOnce(Kernel2<'_, Self, Self, Self>) -> R) -> Option<R> {
        None
    }
}

macro_rules! wide_lanes {
    ($($t:ty),*) => {$(
        impl Lane for $t {
            fn unary<R>(op: Unary, run: impl FnOnce(Kernel1<'_, $t, $t>) -> R) -> Option<R> {
                Some(run(&unary::kernel::<$t>(op)))
            }
            fn binary<R>(op: Binary, run: impl FnOnce(Kernel2<'_, $t, $t, $t>) -> R) -> Option<R> {
                Some(run(&binary::kernel::<$t>(op)?))
            }
            fn compare<R>(op: Compare, run: impl FnOnce(Kernel2<'_, $t, $t, Bool>) -> R) -> R {
                run(&binary::compare::<$t>(op))
            }
            fn grad<R>(op: Activation, run: impl FnOnce(Kernel2<'_, $t, $t, $t>) -> R) -> Option<R> {
                Some(run(&grad::kernel::<$t>(op)))
            }
        }
    )*};
}
wide_lanes!(f32, f64);

macro_rules! narrow_lanes {
    ($($t:ty),*) => {$(
        impl Lane for $t {
            fn unary<R>(op: Unary, run: impl FnOnce(Kernel1<'_, $t, $t>) -> R) -> Option<R> {
                let kernel = unary::kernel::<f32>(op);
                Some(run(&|x, out| widened1(kernel, x, out)))
            }
            fn binary<R>(op: Binary, run: impl FnOnce(Kernel2<'_, $t, $t, $t>) -> R) -> Option<R> {
                let kernel = binary::kernel::<f32>(op)?;
                Some(run(&|x, y, out| widened2(kernel, x, y, out)))
            }
            fn compare<R>(op: Compare, run: impl FnOnce(Kernel2<'_, $t, $t, Bool>) -> R) -> R {
                let kernel = binary::compare::<f32>(op);
                run(&|x, y, out| widened2(kernel, x, y, out))
            }
            fn grad<R>(op: Activation, run: impl FnOnce(Kernel2<'_, $t, $t, $t>) -> R) -> Option<R> {
                let kernel = grad::kernel::<f32>(op);
                Some(run(&|x, y, out| widened2(kernel, x, y, out)))
            }
        }
    )*};
}
narrow_lanes!(f16, bf16, F8E4M3, F8E5M2);

macro_rules! int_lanes {
    ($($t:ty),*) => {$(
        impl Lane for $t {
            fn is_zero_divisor(self) -> bool {
                self == <$t as Int>::ZERO
            }
            fn unary<R>(op: Unary, run: impl FnOnce(Kernel1<'_, $t, $t>) -> R) -> Option<R> {
                Some(run(&integer::unary::<$t>(op)?))
            }
            fn complement<R>(run: impl FnOnce(Kernel1<'_, $t, $t>) -> R) -> Option<R> {
                Some(run(&integer::complement::<$t>()))
            }
            fn binary<R>(op: Binary, run: impl FnOnce(Kernel2<'_, $t, $t, $t>) -> R) -> Option<R> {
                Some(run(&integer::binary::<$t>(op)?))
            }
            fn compare<R>(op: Compare, run: impl FnOnce(Kernel2<'_, $t, $t, Bool>) -> R) -> R {
                run(&binary::compare::<$t>(op))
            }
        }
    )*};
}
int_lanes!(u8, i8, i16, i32, i64, u16, u32, u64);

impl Lane for Bool {
    fn complement<R>(run: impl FnOnce(Kernel1<'_, Bool, Bool>) -> R) -> Option<R> {
        Some(run(&|x, out| {
            for (o, x) in out.iter_mut().zip(x) {
                *o = Bool::new(!x.get());
            }
        }))
    }
    fn binary<R>(op: Binary, run: impl FnOnce(Kernel2<'_, Bool, Bool, Bool>) -> R) -> Option<R> {
        Some(run(&integer::logical(op)?))
    }
    fn compare<R>(op: Compare, run: impl FnOnce(Kernel2<'_, Bool, Bool, Bool>) -> R) -> R {
        run(&binary::compare::<Bool>(op))
    }
}
