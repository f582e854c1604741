//! Timing.
use planaria_array::ops::*;
use planaria_array::*;
use std::time::Instant;
struct Rng(u64);
impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
fn time(name: &str, mut f: impl FnMut()) {
    for _ in 0..3 {
        f();
    }
    let mut ts = vec![];
    let s = Instant::now();
    while (s.elapsed().as_millis() < 300 && ts.len() < 60) || ts.len() < 5 {
        let t = Instant::now();
        f();
        ts.push(t.elapsed().as_secs_f64() * 1e3);
    }
    ts.sort_by(f64::total_cmp);
    println!("{name} {:.3} {:.3}", ts[ts.len() / 10], ts[ts.len() / 2]);
}
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let threads: usize = a[1].parse().unwrap();
    let only = a.get(2).cloned();
    Threads::new(threads).unwrap().run(move || run(only));
}
fn run(only: Option<String>) {
    let mut r = Rng(88172645463325252);
    let want = |n: &str| only.as_ref().map_or(true, |o| o.split(',').any(|x| x == n));
    let mut randn = |shape: &[usize]| {
        let n: usize = shape.iter().product();
        let v: Vec<f32> = (0..n).map(|_| (r.next() >> 40) as f32 / 16777216.0 - 0.5).collect();
        Array::from_slice(&v, shape).unwrap()
    };
    let mut q = Rng(1234567);
    let mut randint = |hi: u64, shape: &[usize]| {
        let n: usize = shape.iter().product();
        let v: Vec<i64> = (0..n).map(|_| (q.next() % hi) as i64).collect();
        Array::from_slice(&v, shape).unwrap()
    };
    let mut p = Rng(987654321);
    let mut randb = |shape: &[usize]| {
        let n: usize = shape.iter().product();
        let v: Vec<Bool> = (0..n).map(|_| Bool::new(p.next() >> 63 == 1)).collect();
        Array::from_slice(&v, shape).unwrap()
    };
    if want("mask_get_full") || want("mask_set_scalar") || want("mask_set_values") {
        let x = randn(&[4096, 1024]);
        let m = randb(&[4096, 1024]);
        let i = [Index::Mask(m.clone())];
        if want("mask_get_full") {
            time("mask_get_full", || drop(x.get(&i).unwrap()));
        }
        if want("mask_set_scalar") {
            time("mask_set_scalar", || x.set_scalar(&i, 0.5).unwrap());
        }
        let v = x.get(&i).unwrap();
        if want("mask_set_values") {
            time("mask_set_values", || x.set(&i, &v).unwrap());
        }
    }
    if want("mask_get_rows") {
        let x = randn(&[16384, 256]);
        let i = [Index::Mask(randb(&[16384]))];
        time("mask_get_rows", || drop(x.get(&i).unwrap()));
    }
    if want("idx_get_rows") {
        let x = randn(&[50257, 768]);
        let i = [Index::Take(randint(50257, &[4096]))];
        time("idx_get_rows", || drop(x.get(&i).unwrap()));
    }
    if want("idx_get_2") {
        let x = randn(&[256, 128, 256]);
        let i = [Index::Take(randint(256, &[2048])), Index::all(), Index::Take(randint(256, &[2048]))];
        time("idx_get_2", || drop(x.get(&i).unwrap()));
    }
    if want("idx_get_rows_bwd") {
        let x = randn(&[50257, 256]);
        let i = [Index::Take(randint(50257, &[4096]))];
        let g = randn(&[4096, 256]);
        time("idx_get_rows_bwd", || {
            drop(x.get(&i).unwrap());
            drop(get_grad(&g, &i, &[50257, 256]).unwrap());
        });
    }
    if want("put_elem") || want("put_elem_acc") {
        let x = randn(&[4096, 1024]);
        let i = [Some(randint(4096, &[1 << 20])), Some(randint(1024, &[1 << 20]))];
        let v = randn(&[1 << 20]);
        if want("put_elem") {
            time("put_elem", || x.index_put_assign(&i, &v, Put::Replace).unwrap());
        }
        if want("put_elem_acc") {
            time("put_elem_acc", || x.index_put_assign(&i, &v, Put::Accumulate).unwrap());
        }
    }
    if want("put_rows_acc") {
        let x = randn(&[50257, 256]);
        let i = [Some(randint(50257, &[8192]))];
        let v = randn(&[8192, 256]);
        time("put_rows_acc", || x.index_put_assign(&i, &v, Put::Accumulate).unwrap());
    }
    if want("put_bwd") {
        let x = randn(&[4096, 1024]);
        let i = [Some(randint(4096, &[1 << 18])), Some(randint(1024, &[1 << 18]))];
        let v = randn(&[1 << 18]);
        let g = randn(&[4096, 1024]);
        time("put_bwd", || {
            drop(x.index_put(&i, &v, Put::Accumulate).unwrap());
            drop(index_put_grad(&g, &i, Put::Accumulate).unwrap());
            drop(index_put_value_grad(&g, &i, &[1 << 18]).unwrap());
        });
    }
    let sl = [Index::slice(None, None, Some(2)), Index::slice(Some(1), Some(-1), None)];
    if want("slice_copy") {
        let x = randn(&[4096, 4096]);
        time("slice_copy", || drop(x.get(&sl).unwrap().contiguous().unwrap()));
    }
    if want("slice_set") {
        let x = randn(&[4096, 4096]);
        let v = randn(&[2048, 4094]);
        time("slice_set", || x.set(&sl, &v).unwrap());
    }
    if want("masked_fill") || want("masked_fill_bwd") {
        let x = randn(&[8, 8, 512, 512]);
        let mv: Vec<Bool> = (0..512 * 512).map(|k| Bool::new(k % 512 > k / 512)).collect();
        let m = Array::from_slice(&mv, &[512, 512]).unwrap();
        if want("masked_fill") {
            time("masked_fill", || drop(x.masked_fill(&m, f64::NEG_INFINITY).unwrap()));
        }
        let g = randn(&[8, 8, 512, 512]);
        if want("masked_fill_bwd") {
            time("masked_fill_bwd", || {
                drop(x.masked_fill(&m, -1e9).unwrap());
                drop(masked_fill_grad(&g, &m, &[8, 8, 512, 512]).unwrap());
            });
        }
    }
    if want("gather") {
        let x = randn(&[4096, 4096]);
        let i = randint(4096, &[4096, 1024]);
        time("gather", || drop(x.gather(1, &i).unwrap()));
    }
    if want("scatter_add") {
        let x = Array::zeros(&[4096, 4096], DType::F32).unwrap();
        let i = randint(4096, &[4096, 1024]);
        let v = randn(&[4096, 1024]);
        time("scatter_add", || drop(x.scatter_add(1, &i, &v).unwrap()));
    }
    if want("transpose_copy") {
        let x = randn(&[4096, 4096]);
        time("transpose_copy", || drop(x.transpose(0, 1).unwrap().contiguous().unwrap()));
    }
    if want("permute_copy") {
        let x = randn(&[8, 512, 16, 64]);
        time("permute_copy", || drop(x.permute(&[0, 2, 1, 3]).unwrap().contiguous().unwrap()));
    }
}
