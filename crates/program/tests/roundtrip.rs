//! Random programs come back from their files and from their text.

use planaria_program::{
    Attr, Block, Data, Node, Op, Parameter, Program, Real, Region, Type, Value, ValueId, paddle, parse,
};
use proptest::prelude::*;
use std::sync::Arc;

/// Strings with everything that JSON escapes, and more.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("x".to_string()),
        Just("linear_0.w_0".to_string()),
        Just("\" \\ \n\t\u{1}\u{7f} / ü 語 🦀".to_string()),
        "[ -~]{0,6}",
    ]
}

fn data() -> impl Strategy<Value = Data> {
    let leaf = prop_oneof![
        Just(Data::Null),
        any::<bool>().prop_map(Data::Bool),
        any::<i64>().prop_map(Data::Int),
        any::<f64>().prop_filter("finite", |x| x.is_finite()).prop_map(|x| Data::Real(Real::new(x))),
        text().prop_map(|text| Data::Text(text.into())),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Data::List),
            (text(), inner).prop_map(|(kind, data)| Data::Node(Arc::new(Node::with(&kind, data)))),
        ]
    })
}

fn node() -> impl Strategy<Value = Arc<Node>> {
    prop_oneof![
        any::<bool>().prop_map(Node::bool),
        any::<i32>().prop_map(Node::i32),
        any::<i64>().prop_map(Node::i64),
        any::<f32>().prop_map(Node::f32),
        any::<f64>().prop_map(Node::f64),
        Just(Node::f64(-0.0)),
        text().prop_map(|text| Node::text(&text)),
        prop::collection::vec(any::<i64>(), 0..4).prop_map(|values| Node::int_array(&values)),
        prop::collection::vec(any::<f32>().prop_map(Node::f32), 0..4).prop_map(Node::array),
        (text(), data()).prop_map(|(kind, data)| Node::with(&kind, data)),
        (text(), text()).prop_map(|(kind, special)| Node {
            kind: kind.as_str().into(),
            data: None,
            special: Some(special.into())
        }),
    ]
    .prop_map(Arc::new)
}

fn ty() -> impl Strategy<Value = Type> {
    let elements =
        ["0.t_i32", "0.t_f16", "0.t_f32", "0.t_bf16", "0.t_f8e4m3fn", "0.t_i64", "0.t_c128", "0.t_bool"];
    let tensor = (0..elements.len(), prop::collection::vec(-1i64..5, 0..4)).prop_map(move |(at, dims)| {
        let dims = Data::List(dims.into_iter().map(Data::Int).collect());
        let parts = vec![Data::Node(Arc::new(Node::plain(elements[at]))), dims];
        let rest = [Data::Text("NCHW".into()), Data::List(Vec::new()), Data::Int(0)];
        // Selected rows are written as tensors are, arrays of tensors without offsets.
        let (kind, rest) = match at {
            0 => ("1.t_selected_rows", &rest[..]),
            1 => ("1.t_dense_tensor_array", &rest[..1]),
            _ => ("0.t_dtensor", &rest[..]),
        };
        Arc::new(Node::with(kind, Data::List(parts.into_iter().chain(rest.iter().cloned()).collect())))
    });
    let vector = prop::collection::vec(tensor.clone(), 0..3).prop_map(|types| {
        Arc::new(Node::with("0.t_vec", Data::List(types.into_iter().map(Data::Node).collect())))
    });
    prop_oneof![tensor, vector, Just(Arc::new(Node::plain("NULL"))), node()]
}

fn attrs() -> impl Strategy<Value = Vec<Attr>> {
    let attr = (text(), node()).prop_map(|(name, value)| Attr { name: name.into(), value });
    prop::collection::vec(attr, 0..3)
}

fn value() -> impl Strategy<Value = Value> {
    (any::<i64>(), ty()).prop_map(|(id, ty)| Value { id: ValueId(id), ty })
}

fn parameter() -> impl Strategy<Value = Op> {
    let flags = || prop::array::uniform3(any::<bool>());
    let rest = (prop::option::of(flags()), prop::option::of(attrs()), prop::option::of(attrs()));
    (text(), flags(), rest, value()).prop_map(|(name, flags, (state, dist, origin), value)| Op {
        name: "p".into(),
        operands: Vec::new(),
        results: vec![value],
        attrs: Vec::new(),
        result_attrs: None,
        regions: Vec::new(),
        parameter: Some(Box::new(Parameter { name: name.into(), flags, state, dist, origin })),
    })
}

fn plain() -> impl Strategy<Value = Op> {
    let name = prop_oneof![
        Just("1.matmul".to_string()),
        Just("0.combine".to_string()),
        Just("dist_op.shard_tensor".to_string()),
        Just("pd_op.spelled_out".to_string()),
        "[a-z]{1,3}[.][ -~]{1,5}".prop_filter("no parameter", |name| name != "p"),
    ];
    let operands = prop::collection::vec(any::<i64>().prop_map(ValueId), 0..4);
    let results = prop::collection::vec(value(), 0..3);
    (name, operands, results, attrs(), prop::option::of(attrs())).prop_map(
        |(name, operands, results, attrs, result_attrs)| Op {
            name: name.into(),
            operands,
            results,
            attrs,
            result_attrs,
            regions: Vec::new(),
            parameter: None,
        },
    )
}

fn region(ops: impl Strategy<Value = Vec<Op>>) -> impl Strategy<Value = Region> {
    let kwargs = prop::option::of(prop::collection::vec((text().prop_map(Into::into), value()), 0..2));
    (text(), text(), prop::collection::vec(value(), 0..3), kwargs, ops).prop_map(
        |(label, block, args, kwargs, ops)| {
            let block = Block { label: block.into(), args, kwargs, ops };
            Region { label: label.into(), blocks: vec![block] }
        },
    )
}

fn program() -> impl Strategy<Value = Program> {
    let op = prop_oneof![1 => parameter(), 4 => plain()].prop_recursive(2, 8, 2, |inner| {
        let regions = prop::collection::vec(region(prop::collection::vec(inner, 0..3)), 0..3);
        (plain(), regions).prop_map(|(op, regions)| Op { regions, ..op })
    });
    (1u64..5, any::<bool>(), any::<bool>(), region(prop::collection::vec(op, 0..6))).prop_map(
        |(version, trainable, readable, body)| Program { version, trainable, readable, body: Arc::new(body) },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn files_and_text_give_the_same_program_back(program in program()) {
        let file = paddle::write(&program);
        let again = paddle::read(file.as_bytes()).unwrap();
        prop_assert_eq!(&again, &program);
        prop_assert_eq!(paddle::write(&again), file);
        let shown = program.to_string();
        match parse(&shown) {
            Ok(again) => prop_assert_eq!(again, program),
            Err(error) => prop_assert!(false, "{error}\n{shown}"),
        }
    }
}

#[test]
fn numbers_keep_the_digits_that_a_file_has() {
    let file = r##"{"base_code":{"magic":"pir","trainable":true,"version":4},"program":{"regions":[{"#":"region_0","blocks":[{"#":"block_0","args":[],"ops":[{"#":"x.y","A":[{"AT":{"#":"0.a_f64","D":1E5},"N":"a"},{"AT":{"#":"0.a_f64","D":0.10000000000000001},"N":"b"},{"AT":{"#":"0.a_i64","D":-9223372036854775808},"N":"c"},{"AT":{"#":"0.a_i64","D":18446744073709551615},"N":"d"},{"AT":{"#":"0.a_f32","VD":"NAN"},"N":"e"},{"AT":{"#":"z.new","D":{"k":[null,-0,-0.0]}},"N":"f"}],"I":[],"O":[]}]}]}]}}"##;
    let program = paddle::read(file.as_bytes()).unwrap();
    assert_eq!(paddle::write(&program), file);
    assert_eq!(parse(&program.to_string()).unwrap(), program);
    let op = &program.block().unwrap().ops[0];
    assert_eq!(op.attr("c").unwrap().as_int(), Some(i64::MIN));
    assert!(op.attr("e").unwrap().as_real().unwrap().is_nan());
}
