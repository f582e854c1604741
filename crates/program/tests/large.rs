//! A program of very many ops: read, cloned, changed and written with memory that the size of its file bounds.

use planaria_program::{paddle, remove_dead, verify};
use std::fmt::Write;

/// Most bytes of memory that this process has had, where the system says so.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// A chain of activations as a file of Paddle; the last half of them is fetched by nobody.
fn file(ops: usize) -> String {
    let mut file = String::from(
        r##"{"base_code":{"magic":"pir","trainable":true,"version":4},"program":{"regions":[{"#":"region_0","blocks":[{"#":"block_0","args":[],"ops":["##,
    );
    let ty = r##"{"#":"0.t_dtensor","D":[{"#":"0.t_f32"},[-1,64],"NCHW",[],0]}"##;
    let flag = r##"[{"AT":{"#":"0.a_array","D":[{"#":"0.a_bool","D":true}]},"N":"stop_gradient"}]"##;
    let place = r##"{"AT":{"#":"1.a_place","D":[0,0,""]},"N":"place"}"##;
    write!(
        file,
        r##"{{"#":"1.data","A":[{{"AT":{{"#":"0.a_str","D":"x"}},"N":"name"}},{{"AT":{{"#":"1.a_intarray","D":[-1,64]}},"N":"shape"}},{{"AT":{{"#":"1.a_dtype","D":"float32"}},"N":"dtype"}},{place}],"I":[],"O":[{{"%":1,"TT":{ty}}}],"OA":{flag}}}"##
    )
    .unwrap();
    for id in 1..ops {
        let next = id + 1;
        write!(
            file,
            r##",{{"#":"1.relu","A":[],"I":[{{"%":{id}}}],"O":[{{"%":{next},"TT":{ty}}}],"OA":{flag}}}"##
        )
        .unwrap();
    }
    file.push_str("]}]}]}}");
    file
}

/// `PLANARIA_TRIALS=5` makes a million of them.
#[test]
fn many_ops_take_memory_that_the_file_bounds() {
    let times = std::env::var("PLANARIA_TRIALS").map_or(1, |times| times.parse().unwrap());
    let ops = 200_000 * times;
    let file = file(ops);
    let before = peak();
    let program = paddle::read(file.as_bytes()).unwrap();
    assert_eq!(program.op_count(), ops);
    // Clones share everything until one is changed.
    let copies: Vec<_> = (0..1000).map(|_| program.clone()).collect();
    let read = peak();
    assert_eq!(verify(&program), []);
    assert!(paddle::write(&program) == file, "the file does not come back");
    let mut changed = copies[0].clone();
    assert_eq!(remove_dead(&mut changed), ops - 1);
    let after = peak();
    if let (Some(before), Some(read), Some(after)) = (before, read, after) {
        let times = |bytes: u64| bytes.saturating_sub(before) as f64 / file.len() as f64;
        assert!(times(read) < 3.0, "read with {:.1} times the file", times(read));
        assert!(times(after) < 10.0, "checked, written and changed with {:.1} times the file", times(after));
    }
}
