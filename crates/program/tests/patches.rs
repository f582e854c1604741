//! Patches change what they name, change nothing the second time, and are taken back only where nothing is lost.

use planaria_program::paddle::{PatchFile, downgrade, upgrade};
use planaria_program::{Program, parse};

fn program(op: &str) -> Program {
    let text = format!(
        "program version=1 trainable=true readable=false\nregion \"r\" {{ block \"b\" () {{ {op} }} }}"
    );
    parse(&text).unwrap()
}

fn only_op(program: &Program) -> String {
    program.block().unwrap().ops[0].to_string()
}

#[test]
fn an_upgrade_changes_kinds_and_adds_what_is_missing_once() {
    let mut old = program("%1 = pd_op.repeat_interleave(%0) {repeats = 2:i32, axis = 0:i32} : f32[4]");
    assert_eq!(upgrade(&mut old).unwrap().len(), 1);
    let new = "%1 = pd_op.repeat_interleave(_) {repeats = 2:i32, axis = 0:i32, output_size = -1} : f32[4]";
    assert_eq!((old.version, only_op(&old).as_str()), (4, new));
    old.version = 3;
    assert_eq!(upgrade(&mut old).unwrap(), []);
    let mut pool = program("%1 = pd_op.pool2d(%0, %0) {strides = [2:i32, 2:i32], paddings = []} : f32[4]");
    upgrade(&mut pool).unwrap();
    assert_eq!(only_op(&pool), "%1 = pd_op.pool2d(_, _) {strides = [2, 2], paddings = []} : f32[4]");
    let mut slope = program("%1 = pd_op.leaky_relu(%0) {negative_slope = 0.20000000298023224:f32} : f32[4]");
    upgrade(&mut slope).unwrap();
    assert!(only_op(&slope).contains("negative_slope = 0.20000000298023224}"));
}

#[test]
fn a_downgrade_refuses_what_would_be_lost() {
    for (op, what) in [
        ("%1 = pd_op.leaky_relu(%0) {negative_slope = 0.1} : f32[4]", "exactly"),
        ("%1 = pd_op.kthvalue(%0) {k = 4294967296} : f32[4]", "exactly"),
        ("%1 = pd_op.repeat_interleave(%0) {output_size = 7} : f32[4]", "output_size"),
        ("%1 = pd_op.masked_fill(%0, %0, %0) : f32[4]", "does not have this op"),
    ] {
        let mut new = program(op);
        new.version = 4;
        let error = downgrade(&mut new, 1).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("pd_op."), "{error}");
    }
    let mut exact = program("%1 = pd_op.leaky_relu(%0) {negative_slope = 0.25} : f32[4]");
    exact.version = 4;
    downgrade(&mut exact, 3).unwrap();
    assert!(only_op(&exact).contains("0.25:f32"));
}

#[test]
fn a_patch_file_can_do_everything_the_grammar_has() {
    let patch = r#"{"version": 9, "op_patches": [{"op_name": "custom_op.x", "actions": [
        {"action": "delete_attr", "object": "gone"},
        {"action": "modify_attr_name", "object": "old", "default": "new"},
        {"action": "modify_attr", "object": "list", "type": "pir::ArrayAttribute", "data": [{"type": "pir::Int64Attribute", "data": 7}]},
        {"action": "add_output_attr", "object": "stop_gradient", "type": "pir::ArrayAttribute", "data": [{"type": "pir::BoolAttribute", "data": true}]},
        {"action": "delete_input", "object": 1},
        {"action": "add_output", "object": 1, "type": "pir::DenseTensorType", "data": ["pir::Float32Type", [-1], "NCHW", [], 0]},
        {"action": "modify_output_type", "object": 0, "type": "pir::DenseTensorType", "data": ["pir::Int64Type", [], "NCHW", [], 0]},
        {"action": "modify_name", "default": "custom_op.y"}]}],
        "attr_patches": [{"attr_name": "pir::FloatAttribute", "actions": [{"action": "modify_name", "type": "pir::DoubleAttribute"}]}],
        "op_pair_patches": [{"op_pair": ["custom_op.a", "custom_op.b"], "actions": [{"action": "add_value", "object": [1, 1], "type": "pir::DenseTensorType", "data": ["pir::BoolType", [2], "NCHW", [], 0]}]}]}"#;
    let patch = PatchFile::parse(patch).unwrap();
    let mut program = program(
        "%1 = custom_op.x(%5, %6) {gone = 1, old = 0.5:f32, list = [1:i32]} : f32[4] %2 = custom_op.a() : f32[] \
         %3 = custom_op.b(%2) : f32[]",
    );
    patch.apply(&mut program).unwrap();
    let ops: Vec<String> = program.block().unwrap().ops.iter().map(ToString::to_string).collect();
    assert_eq!(
        ops,
        [
            "%1, %4 = custom_op.y(%5) {new = 0.5, list = [7]} | {stop_gradient = [true]} : i64[], f32[?]",
            "%2, %5 = custom_op.a() : f32[], bool[2]",
            "%3 = custom_op.b(%2, %5) : f32[]",
        ]
    );
    assert!(PatchFile::parse(r#"{"version": 9, "surprise": 1}"#).is_err());
}
