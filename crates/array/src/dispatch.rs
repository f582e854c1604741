//! From a dtype known at run time to a type known to the compiler: each macro runs its body once per type it lists.

/// Calls `$body` with `$T` bound to the type listed for a dtype, or gives `$other` for a dtype that is not listed.
macro_rules! with_types {
    ($dtype:expr, $T:ident => $body:expr, {$($($d:ident)|+: $t:ty),+} $(, $found:pat => $other:expr)?) => {
        match $dtype {
            $($(planaria_layout::DType::$d)|+ => {
                type $T = $t;
                $body
            })+
            $($found => $other,)?
        }
    };
}

/// Calls `$body` with `$T` bound to the Rust type of a dtype.
macro_rules! with_dtype {
    ($dtype:expr, $T:ident => $body:expr) => {
        $crate::dispatch::with_types!($dtype, $T => $body, {
            Bool: $crate::element::Bool, U8: u8, I8: i8, I16: i16, I32: i32, I64: i64, U16: u16, U32: u32, U64: u64,
            F16: half::f16, BF16: half::bf16, F32: f32, F64: f64,
            F8E4M3: $crate::float8::F8E4M3, F8E5M2: $crate::float8::F8E5M2
        })
    };
}

/// Calls `$body` with `$T` bound to the unsigned integer of an element size: for kernels that only move bytes.
macro_rules! with_size {
    ($dtype:expr, $T:ident => $body:expr) => {
        $crate::dispatch::with_types!($dtype, $T => $body, {
            Bool | U8 | I8 | F8E4M3 | F8E5M2: u8, U16 | I16 | F16 | BF16: u16, U32 | I32 | F32: u32,
            U64 | I64 | F64: u64
        })
    };
}

/// Calls `$body` with `$T` bound to a float type kernels accept, or returns a dtype error.
macro_rules! with_float {
    ($op:expr, $dtype:expr, $T:ident => $body:expr) => {
        $crate::dispatch::with_types!($dtype, $T => $body, {
            F32: f32, F64: f64, BF16: half::bf16, F16: half::f16
        }, found => Err($crate::error::Error::DType { op: $op, found, expected: "f32, f64, bf16 or f16" }))
    };
}

/// Calls `$body` with `$T` bound to f32 or f64, or returns a dtype error.
macro_rules! with_real {
    ($op:expr, $dtype:expr, $T:ident => $body:expr) => {
        $crate::dispatch::with_types!($dtype, $T => $body, { F32: f32, F64: f64 }, found => {
            Err($crate::error::Error::DType { op: $op, found, expected: "f32, f64, bf16 or f16" })
        })
    };
}

/// Calls `$body` with `$T` bound to the type of a dtype that `Array::widened` gives, or returns a dtype error.
macro_rules! with_ordered {
    ($op:expr, $dtype:expr, $T:ident => $body:expr) => {
        $crate::dispatch::with_types!($dtype, $T => $body, {
            Bool | U8: u8, I32: i32, I64: i64, U64: u64, F32: f32, F64: f64
        }, found => Err($crate::error::Error::DType { op: $op, found, expected: "any but 8-bit floats" }))
    };
}

/// Calls `$body` with `$T` bound to a type that adds as the dtype does: wrapping sums are the same for signed and
/// unsigned integers, which halves the code.
macro_rules! with_sum {
    ($dtype:expr, $T:ident => $body:expr) => {
        $crate::dispatch::with_types!($dtype, $T => $body, {
            Bool: $crate::element::Bool, U8 | I8: u8, U16 | I16: u16, U32 | I32: u32, U64 | I64: u64,
            F16: half::f16, BF16: half::bf16, F32: f32, F64: f64,
            F8E4M3: $crate::float8::F8E4M3, F8E5M2: $crate::float8::F8E5M2
        })
    };
}
pub(crate) use {with_dtype, with_float, with_ordered, with_real, with_size, with_sum, with_types};
