//! Random texts must never panic, hang or allocate without bound: they parse and compile, or are refused.

use crate::common;
use common::{catalog, whole};
use planaria_aoa::{Degrees, Error, Mapping, Options, Program, Strictness, Ties};
use planaria_layout::Region;

/// How many texts each test makes.
const TEXTS: usize = 3000;

/// A small generator: the same texts in every run.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % below.max(1)
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.next(from.len())]
    }
}

const NAMES: &[&str] = &[
    "a",
    "b",
    "l.0.w",
    "l.1.w",
    "l.$LAYER_ID.w",
    "l.$LAYER_ID.e.$EXPERT_ID.w",
    "l.*.w",
    "l.$LAYER_ID.e.*.w",
    "m.$LAYER_ID.w",
    "l.$LAYER_ID_OFFSET.w",
    "m.$LAYER_ID_OFFSET.w",
    "x_0",
    "x[0:2]",
    "x[0:99999999999]",
    "_",
    "t",
    "u",
    "'q q'",
    "a^T",
    "b?",
    "$X",
    "l.$X.$X.w",
    "*",
    "d",
    "e",
    "f",
    "layout",
    "axis",
    "é",
];

const ATTRS: &[&str] = &[
    "axis=0",
    "axis=1",
    "axis=-1",
    "axis=99999999999",
    "axis=-9223372036854775808",
    "permute=\"[]\"",
    "permute=[1,0]",
    "permute=[0,0]",
    "permute='[-1,-9223372036854775808]'",
    "dtype='float32'",
    "dtype=bf16",
    "src_dtype='float32', dst_dtype='bfloat16'",
    "fused_qkv",
    "fused_qkv_old",
    "fused_ffn",
    "num_heads=4",
    "num_heads=1048576",
    "num_key_value_groups=2",
    "num_key_value_groups=1048576",
    "reshape=[-1]",
    "reshape=[4611686018427387904, 4, -1]",
    "reshape=[0,-1]",
    "src_shape=[4,6]",
    "sizes=[2,2]",
    "sizes=[18446744073709551615, 1]",
    "sizes=[9223372036854775807, 9223372036854775807, 2]",
    "src_layout=tp",
    "dst_layout=huge",
    "foo=1",
    "dtype=",
    "axis",
];

fn line(random: &mut Random) -> String {
    let side = |random: &mut Random| {
        let names: Vec<&str> = (0..=random.next(3)).map(|_| random.pick(NAMES)).collect();
        names.join(", ")
    };
    let mut line = format!("{} -> {}", side(random), side(random));
    for _ in 0..random.next(4) {
        line.push_str(", ");
        line.push_str(random.pick(ATTRS));
    }
    line
}

/// A text of a few lines, sometimes damaged.
fn text(random: &mut Random) -> String {
    let mut text = String::from("layout tp = 2\nlayout huge = 9223372036854775807\n");
    for _ in 0..=random.next(5) {
        text.push_str(&line(random));
        text.push_str(random.pick(&["\n", "\n", "\r\n", " # c\n", ""]));
    }
    if random.next(3) == 0 {
        let mut bytes = text.into_bytes();
        for _ in 0..=random.next(4) {
            let at = random.next(bytes.len());
            if bytes.is_empty() {
                break;
            }
            match random.next(3) {
                0 => bytes[at] = b"->=[]:,'\"*$^?#\n\x00\xff"[random.next(17)],
                1 => _ = bytes.remove(at),
                _ => bytes.truncate(at.max(1)),
            }
        }
        text = String::from_utf8_lossy(&bytes).into_owned();
    }
    text
}

/// Asks a mapping everything there is to ask.
fn use_up(mapping: &Mapping) {
    for target in mapping.targets() {
        let whole = Region::whole(target.tensor().shape());
        let pieces = mapping.pieces(target.name(), &whole).unwrap();
        let covered: usize = pieces.iter().map(|piece| piece.to.numel()).sum();
        assert!(!target.is_loaded() || covered == whole.numel(), "{}", target.name());
        mapping.sources_of(target.name()).unwrap();
    }
    mapping.unread();
    if let Err(error) = mapping.inverse(Ties::First) {
        assert!(matches!(error, Error::NotInvertible(_)), "{error}");
    }
}

#[test]
fn random_texts_compile_or_are_refused() {
    let sources = catalog(
        "tp=2 dp=3",
        &[
            "a f32[4,6] @ tp:S1",
            "b f32[4,6] @ dp:S0",
            "l.0.w bf16[8,4] @ tp:S0",
            "l.1.w bf16[8,4]",
            "l.0.e.0.w f32[6]",
            "l.0.e.1.w f32[6]",
            "l.1.e.0.w f32[0]",
            "x_0 f32[2,2,2]",
            "x_1 f32[2,2,2]",
            "d f32[]",
        ],
    );
    let targets = whole(&["t f32[4,6]", "u f32[6,4]", "m.0.w bf16[8,4]", "e f32[12]"]);
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut accepted = 0;
    for _ in 0..TEXTS {
        let text = text(&mut random);
        let Ok(program) = Program::parse(text.as_str()) else { continue };
        let strictness = [Strictness::Strict, Strictness::Lenient][random.next(2)];
        let degrees = [Degrees::Known, Degrees::Guessed][random.next(2)];
        let options = Options { strictness, degrees, ..Options::default() };
        let far = (random.next(3) == 0).then_some(&targets);
        for result in
            [program.compile(&sources, far, &options), program.compile_reverse(&sources, far, &options)]
        {
            match result {
                Ok(mapping) => {
                    accepted += 1;
                    use_up(&mapping);
                }
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
    }
    assert!(accepted > 10, "{accepted} of {TEXTS} accepted");
}

#[test]
fn random_characters_parse_or_are_refused_and_printed_ones_come_back() {
    let mut random = Random(0xD1B5_4A32_D192_ED03);
    for _ in 0..20 * TEXTS {
        let len = random.next(60);
        let alphabet = [
            "a", "b.", "$L", "*", "^T", "->", ",", "=", "[", "]", ":", "1", "-", "/", "'", "\"", " ", "?",
            "#", "\n", "é", "_",
        ];
        let text: String = (0..len).map(|_| random.pick(&alphabet)).collect();
        if let Ok(program) = Program::parse(text.as_str()) {
            for statement in program.statements() {
                let again = Program::parse(statement.to_string()).unwrap();
                assert_eq!(again.statements()[0].to_string(), statement.to_string(), "{text:?}");
            }
        }
    }
}
