//! Single ops against plain loops.

use planaria_array::{Array, DType};
use planaria_program::{Datum, ProgramState, check, parse, run};

/// The first result of one op on tensors of these shapes, filled with small numbers.
fn answer(op: &str, shapes: &[&[usize]], result: &str) -> (Vec<Vec<f32>>, Vec<f32>) {
    let mut text =
        String::from("program version=4 trainable=true readable=false region \"r\" { block \"b\" () {\n");
    let place = "@{\"#\":\"1.a_place\",\"D\":[0,0,\"\"]}";
    let list = |dims: &[usize]| dims.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    for (at, dims) in shapes.iter().enumerate() {
        let (id, dims) = (at + 1, list(dims));
        text += &format!(
            "%{id} = pd_op.data() {{name = \"x{at}\", shape = <{dims}>, dtype = dtype \"float32\", place = {place}}} : f32[{dims}]\n"
        );
    }
    let (first, _) = result.split_once(", ").unwrap_or((result, ""));
    text +=
        &format!("{op} : {result}\n%99 = pd_op.fetch(%50) {{name = \"out\", col = 0:i32}} : {first} }} }}");
    let program = parse(&text).unwrap();
    check(&program).unwrap();
    let fill = |dims: &&[usize], seed: usize| -> Vec<f32> {
        (0..dims.iter().product()).map(|at: usize| ((at * 7 + seed * 3) % 11) as f32 - 5.0).collect()
    };
    let values: Vec<Vec<f32>> = shapes.iter().enumerate().map(|(seed, dims)| fill(dims, seed)).collect();
    let inputs: Vec<Datum> = values
        .iter()
        .zip(shapes)
        .map(|(v, dims)| Datum::Array(Array::from_slice(v, dims).unwrap()))
        .collect();
    let out = run(&program, &mut ProgramState::default(), &inputs).unwrap();
    (values, out[0].1.array().unwrap().cast(DType::F32).unwrap().to_vec::<f32>().unwrap())
}

/// Paddle writes these axes as integers of 32 bits.
#[test]
fn logarithms_of_sums_of_exponentials_are_taken_along_axes() {
    let op = "%50 = pd_op.logsumexp(%1) {axis = [1:i32], keepdim = false, reduce_all = false}";
    let (values, found) = answer(op, &[&[2, 3, 4]], "f32[2,4]");
    let sum = |i: usize, k: usize| (0..3).map(|j| values[0][(i * 3 + j) * 4 + k].exp()).sum::<f32>();
    for (at, found) in found.iter().enumerate() {
        assert!((found - sum(at / 4, at % 4).ln()).abs() < 1e-5, "{at}: {found}");
    }
}

#[test]
fn products_with_a_vector_and_with_an_addend() {
    let (values, found) = answer("%50 = pd_op.mv(%1, %2)", &[&[3, 4], &[4]], "f32[3]");
    let row = |i: usize| (0..4).map(|k| values[0][i * 4 + k] * values[1][k]).sum::<f32>();
    assert_eq!(found, [row(0), row(1), row(2)]);
    let op = "%50 = pd_op.addmm(%1, %2, %3) {beta = 0.5:f32, alpha = 2.0:f32}";
    let (values, found) = answer(op, &[&[2], &[3, 4], &[4, 2]], "f32[3,2]");
    let sum = |i: usize, j: usize| (0..4).map(|k| values[1][i * 4 + k] * values[2][k * 2 + j]).sum::<f32>();
    let expected: Vec<f32> = (0..6).map(|at| 0.5 * values[0][at % 2] + 2.0 * sum(at / 2, at % 2)).collect();
    assert_eq!(found, expected);
}

#[test]
fn blocks_of_positions_become_channels() {
    let op = "%50 = pd_op.pixel_unshuffle(%1) {downscale_factor = 2:i32, data_format = \"NCHW\"}";
    let (values, found) = answer(op, &[&[1, 2, 4, 6]], "f32[1,8,2,3]");
    for (at, found) in found.iter().enumerate() {
        let (channel, y, x) = (at / 6, at / 3 % 2, at % 3);
        let (of, dy, dx) = (channel / 4, channel / 2 % 2, channel % 2);
        assert_eq!(*found, values[0][(of * 4 + y * 2 + dy) * 6 + x * 2 + dx], "{at}");
    }
}

#[test]
fn steps_and_lists_of_tensors() {
    let (values, found) = answer("%50 = pd_op.heaviside(%1, %2)", &[&[3, 4], &[4]], "f32[3,4]");
    assert!(values[0].contains(&0.0));
    for (at, found) in found.iter().enumerate() {
        let x = values[0][at];
        assert_eq!(*found, if x == 0.0 { values[1][at % 4] } else { f32::from(x > 0.0) }, "{at}");
    }
    let op = "%40 = pd_op.unstack(%1) {axis = 1:i32, num = 3:i32} : vec<f32[2,4], f32[2,4], f32[2,4]> \
        %50 = builtin.slice(%40) {index = 2:i32}";
    let (values, found) = answer(op, &[&[2, 3, 4]], "f32[2,4]");
    assert_eq!(found, [&values[0][8..12], &values[0][20..24]].concat());
    let op = "%39 = builtin.combine(%1, %2) : vec<f32[2], f32[3]> \
        %40 = pd_op.meshgrid(%39) : vec<f32[2,3], f32[2,3]> \
        %50 = builtin.slice(%40) {index = 1:i32}";
    let (values, found) = answer(op, &[&[2], &[3]], "f32[2,3]");
    assert_eq!(found, [&values[1][..], &values[1]].concat());
}

#[test]
fn a_residual_is_added_before_the_norm() {
    let op = "%50, %51, %52 = pd_op.fused_rms_norm_quant(%1, _, %2, %3, _) {epsilon = 1e-6:f32, \
        begin_norm_axis = 1:i32, quant_scale = -1.0:f32, quant_round_type = 0:i32, quant_max_bound = 0.0:f32, \
        quant_min_bound = 0.0:f32}";
    let (values, found) = answer(op, &[&[3, 4], &[3, 4], &[4]], "f32[3,4], f32[3,4], f32[3]");
    for row in 0..3 {
        let sums: Vec<f32> = (row * 4..row * 4 + 4).map(|at| values[0][at] + values[1][at]).collect();
        let square = sums.iter().map(|x| x * x).sum::<f32>() / 4.0;
        for (column, sum) in sums.iter().enumerate() {
            let expected = sum / (square + 1e-6).sqrt() * values[2][column];
            assert!((found[row * 4 + column] - expected).abs() < 1e-5, "{row} {column}");
        }
    }
}

#[test]
fn a_transposed_convolution_spreads_every_element() {
    // 2 groups, stride 2, dilation 2, padding 1, one more row and column at the end.
    let (g, ci, co, h, w, k) = (2, 4, 3, 3, 4, 2);
    let (oh, ow) = ((h - 1) * 2 + 2 * (k - 1) + 1 - 2 + 1, (w - 1) * 2 + 2 * (k - 1) + 1 - 2 + 1);
    let op = "%40 = pd_op.full_int_array() {value = [], dtype = dtype \"int64\", place = @{\"#\":\"1.a_place\",\"D\":[1,0,\"\"]}} : i64[0] \
        %50 = pd_op.conv2d_transpose(%1, %2, %40) {strides = [2:i32, 2:i32], paddings = [1:i32, 1:i32], output_padding = [1:i32, 1:i32], \
        padding_algorithm = \"EXPLICIT\", groups = 2:i32, dilations = [2:i32, 2:i32], data_format = \"NCHW\"}";
    let (values, found) =
        answer(op, &[&[1, ci, h, w], &[ci, co, k, k]], &format!("f32[1,{},{oh},{ow}]", g * co));
    let mut expected = vec![0f32; g * co * oh * ow];
    for c in 0..ci {
        for (y, x) in (0..h).flat_map(|y| (0..w).map(move |x| (y, x))) {
            for (o, ky, kx) in (0..co).flat_map(|o| (0..k * k).map(move |t| (o, t / k, t % k))) {
                let (oy, ox) = (y as i64 * 2 + ky as i64 * 2 - 1, x as i64 * 2 + kx as i64 * 2 - 1);
                if (0..oh as i64).contains(&oy) && (0..ow as i64).contains(&ox) {
                    let group = c / (ci / g);
                    let at = ((group * co + o) * oh + oy as usize) * ow + ox as usize;
                    expected[at] +=
                        values[0][(c * h + y) * w + x] * values[1][((c * co + o) * k + ky) * k + kx];
                }
            }
        }
    }
    assert_eq!(found, expected);
}

#[test]
fn averages_count_only_what_is_there_and_the_last_window_is_rounded_up() {
    for exclusive in [true, false] {
        let op = format!(
            "%40 = pd_op.full_int_array() {{value = [3, 3], dtype = dtype \"int64\", place = @{{\"#\":\"1.a_place\",\"D\":[1,0,\"\"]}}}} : i64[2] \
            %50 = pd_op.pool2d(%1, %40) {{strides = [2, 2], paddings = [1, 1], ceil_mode = true, exclusive = {exclusive}, \
            data_format = \"NCHW\", pooling_type = \"avg\", global_pooling = false, adaptive = false, padding_algorithm = \"EXPLICIT\"}}"
        );
        let (h, w) = (6i64, 5i64);
        let (values, found) = answer(&op, &[&[1, 1, 6, 5]], "f32[1,1,4,3]");
        for (at, found) in found.iter().enumerate() {
            let (y, x) = ((at / 3) as i64 * 2 - 1, (at % 3) as i64 * 2 - 1);
            let cells = (y..y + 3).flat_map(|y| (x..x + 3).map(move |x| (y, x)));
            let inside: Vec<(i64, i64)> =
                cells.clone().filter(|(y, x)| (0..h).contains(y) && (0..w).contains(x)).collect();
            let sum: f32 = inside.iter().map(|(y, x)| values[0][(y * w + x) as usize]).sum();
            let padded = cells.filter(|(y, x)| *y < h + 1 && *x < w + 1).count();
            let count = if exclusive { inside.len() } else { padded };
            assert!((found - sum / count as f32).abs() < 1e-6, "exclusive {exclusive}, window {at}");
        }
    }
}

#[test]
fn resizing_reads_between_the_centres_of_pixels() {
    let op = "%50 = pd_op.bilinear_interp(%1, _, _, _) {data_format = \"NCHW\", out_d = -1:i32, out_h = 5:i32, out_w = 3:i32, scale = [], \
        interp_method = \"bilinear\", align_corners = false, align_mode = 0:i32}";
    let (h, w, oh, ow) = (3usize, 4usize, 5usize, 3usize);
    let (values, found) = answer(op, &[&[1, 1, h, w]], "f32[1,1,5,3]");
    let place = |at: usize, from: usize, to: usize| {
        let place = ((at as f64 + 0.5) * from as f64 / to as f64 - 0.5).max(0.0);
        let low = place.floor() as usize;
        (low.min(from - 1), (low + 1).min(from - 1), place - low as f64)
    };
    for (at, found) in found.iter().enumerate() {
        let ((y0, y1, fy), (x0, x1, fx)) = (place(at / ow, h, oh), place(at % ow, w, ow));
        let value = |y: usize, x: usize| f64::from(values[0][y * w + x]);
        let top = value(y0, x0) * (1.0 - fx) + value(y0, x1) * fx;
        let bottom = value(y1, x0) * (1.0 - fx) + value(y1, x1) * fx;
        assert!((f64::from(*found) - (top * (1.0 - fy) + bottom * fy)).abs() < 1e-5, "{at}");
    }
}
