//! What each target does with its bytes: parse, and use all that comes of it.

use planaria_aoa::{Catalog, Options, Program, Tensor, Ties};
use planaria_ckpt::formats::{self, OpenOptions, pickle};
use planaria_layout::{Mesh, Region, TensorSpec};
use planaria_store::container::{Header, Limits};
use planaria_store::{Object, Store, StoreExt, Variables, checksum};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Files beside the one that is made up.
pub(crate) type Companions = Vec<(String, Vec<u8>)>;

/// A store in memory that holds these files.
pub(crate) fn stored(files: &[(&str, &[u8])]) -> Arc<dyn Store> {
    let store: Arc<dyn Store> = Arc::new(Object::memory());
    for (name, bytes) in files {
        store.write(name, bytes).expect("memory takes every file");
    }
    store
}

/// Opens a checkpoint and reads every tensor of it.
pub(crate) fn read_all(store: &Arc<dyn Store>, at: &str) {
    let Ok(source) = formats::open(store, at, &OpenOptions::default()) else { return };
    let _ = source.check_copies();
    for key in source.tensors.keys() {
        let _ = source.read(key);
    }
}

/// The files of a folder of test data.
pub(crate) fn companions(folder: &str) -> Companions {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata").join(folder);
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let read = |file: std::fs::DirEntry| {
        Some((file.file_name().to_string_lossy().into_owned(), std::fs::read(file.path()).ok()?))
    };
    files.filter_map(read).collect()
}

/// Reads a folder in which one file was replaced.
pub(crate) fn replaced(others: &Companions, name: &str, bytes: &[u8]) {
    let mut files: Vec<(&str, &[u8])> = vec![(name, bytes)];
    files.extend(others.iter().filter(|(other, _)| other != name).map(|(n, b)| (n.as_str(), b.as_slice())));
    read_all(&stored(&files), "");
}

/// A pickle as data.
pub(crate) fn pickle(bytes: &[u8]) {
    let store = stored(&[("p", bytes)]);
    let Ok(file) = store.reader("p") else { return };
    if let Ok(tree) = pickle::read(&*file, &pickle::Limits::default()) {
        let _ = tree.to_json(tree.root(), &*file);
    }
}

/// A file of `torch.save`: a zip archive with pickles inside, or the older form without.
pub(crate) fn archive(bytes: &[u8]) {
    read_all(&stored(&[("x.pt", bytes)]), "x.pt");
}

/// A safetensors file.
pub(crate) fn safetensors(bytes: &[u8]) {
    let store = stored(&[("x.safetensors", bytes)]);
    if let Ok(file) = store.reader("x.safetensors") {
        let _ = Header::read(&*file, &Limits::default());
    }
    read_all(&store, "x.safetensors");
}

/// The metadata of a PyTorch DCP folder.
pub(crate) fn dcp(bytes: &[u8]) {
    static FILES: OnceLock<Companions> = OnceLock::new();
    replaced(FILES.get_or_init(|| companions("torch-dcp/nested2")), ".metadata", bytes);
}

/// The metadata of a Paddle folder.
pub(crate) fn paddle(bytes: &[u8]) {
    static FILES: OnceLock<Companions> = OnceLock::new();
    replaced(FILES.get_or_init(|| companions("paddle-checkpoints/tp2")), "0.metadata", bytes);
}

/// The index of a Hugging Face folder.
pub(crate) fn index(bytes: &[u8]) {
    static FILES: OnceLock<Companions> = OnceLock::new();
    let files = FILES.get_or_init(|| companions("torch-dcp/hf_consolidated2"));
    replaced(files, "model.safetensors.index.json", bytes);
}

/// The manifest of our own checkpoints, with a commit mark that vouches for it.
pub(crate) fn manifest(bytes: &[u8]) {
    let (size, sum) = (bytes.len(), checksum::crc32c(bytes));
    let mark = format!(r#"{{"manifest_size": {size}, "manifest_sum": "{sum:08x}"}}"#);
    let store = stored(&[("c/manifest.json", bytes), ("c/COMMIT", mark.as_bytes())]);
    let _ = planaria_ckpt::open(&*store, "c");
    read_all(&store, "c");
}

/// A mapping between checkpoints: parsed, compiled both ways, asked and inverted.
pub(crate) fn aoa(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Ok(program) = Program::parse(&*text) else { return };
    for statement in program.statements() {
        let again = Program::parse(statement.to_string()).expect("what is printed can be parsed");
        assert_eq!(again.statements()[0].to_string(), statement.to_string());
    }
    static SOURCES: OnceLock<Catalog> = OnceLock::new();
    let sources = SOURCES.get_or_init(sources);
    let options = Options::default();
    for mapping in
        [program.compile(sources, None, &options), program.compile_reverse(sources, None, &options)]
    {
        let Ok(mapping) = mapping else { continue };
        for target in mapping.targets() {
            let whole = Region::whole(target.tensor().shape());
            let pieces = mapping.pieces(target.name(), &whole).expect("a mapping knows its own targets");
            let covered: usize = pieces.iter().map(|piece| piece.to.numel()).sum();
            assert!(!target.is_loaded() || covered == whole.numel(), "{}", target.name());
        }
        let _ = mapping.inverse(Ties::First);
    }
}

/// What mappings are compiled against.
fn sources() -> Catalog {
    let mesh: Mesh = "tp=2 dp=3".parse().expect("a mesh");
    let tensors = [
        ("a", "f32[4,6] @ tp:S1"),
        ("b", "f32[4,6] @ dp:S0"),
        ("l.0.w", "bf16[8,4] @ tp:S0"),
        ("l.1.w", "bf16[8,4]"),
        ("l.0.e.0.w", "f32[6]"),
        ("l.0.e.1.w", "f32[6]"),
        ("x_0", "f32[2,2,2]"),
        ("x_1", "f32[2,2,2]"),
        ("d", "f32[]"),
    ];
    let one = |(name, text): (&str, &str)| {
        let spec: TensorSpec = text.parse().expect("a layout");
        let dtype = spec.dtype;
        (name.to_string(), Tensor::of(&spec.on(&mesh).expect("it fits the mesh"), dtype))
    };
    tensors.into_iter().map(one).collect()
}

/// A program as JSON and as text: what is read comes back both ways, and checking it ends.
pub(crate) fn program(bytes: &[u8]) {
    let Ok(program) = planaria_program::paddle::read(bytes) else {
        let _ = planaria_program::parse(&String::from_utf8_lossy(bytes));
        return;
    };
    let file = planaria_program::paddle::write(&program);
    let again = planaria_program::paddle::read(file.as_bytes()).expect("what is written can be read");
    assert_eq!(again, program);
    let text = program.to_string();
    assert_eq!(planaria_program::parse(&text).expect("what is printed can be parsed"), program);
    let _ = planaria_program::verify(&program);
}

/// The parameters of a program.
pub(crate) fn parameters(bytes: &[u8]) {
    static PROGRAM: OnceLock<planaria_program::Program> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let files = companions("paddle-programs");
        let (_, text) = files.iter().find(|(name, _)| name == "mlp.json").expect("test data");
        planaria_program::paddle::read(text).expect("a program")
    });
    let _ = planaria_program::ProgramState::read(program, bytes, bytes.len() as u64);
}

/// An ONNX model, its open extents too; nothing stands beside it.
pub(crate) fn onnx(bytes: &[u8]) {
    let beside = |_: &str, _, _| Err(std::io::ErrorKind::NotFound.into());
    let Ok((program, _)) = planaria_program::onnx::import_open(bytes, &beside) else { return };
    let _ = planaria_program::verify(&program);
}

/// What changed between two versions of ops, applied to a program.
pub(crate) fn patch(bytes: &[u8]) {
    let Ok(patch) = planaria_program::paddle::PatchFile::parse(&String::from_utf8_lossy(bytes)) else {
        return;
    };
    let mut program =
        planaria_program::paddle::read(&crate::seed("paddle-programs/mlp.json")).expect("a program");
    let _ = patch.apply(&mut program);
}

/// The settings of a run; parsing checks every value.
pub(crate) fn settings(bytes: &[u8]) {
    let Ok(config) = planaria_train::Config::parse(&String::from_utf8_lossy(bytes)) else { return };
    let _ = config.check(&planaria_nn::models::Models::default());
    let text = config.to_toml().expect("settings that were read can be written");
    planaria_train::Config::parse(&text).expect("settings that were written can be read");
}

/// What an adapter says of itself: read, written, read again, and put onto a model.
pub(crate) fn adapter(bytes: &[u8]) {
    use planaria_nn::lora::{Adapted, LoraConfig};
    static MODEL: OnceLock<Arc<dyn planaria_nn::models::Architecture>> = OnceLock::new();
    let model = MODEL.get_or_init(|| {
        let text = r#"{"model_type": "qwen2", "vocab_size": 9, "hidden_size": 4, "intermediate_size": 4,
            "num_hidden_layers": 2, "num_attention_heads": 2, "tie_word_embeddings": true}"#;
        planaria_nn::models::Models::default().open_json(text).expect("a model")
    });
    let Ok(config) = LoraConfig::parse(&String::from_utf8_lossy(bytes)) else { return };
    LoraConfig::parse(&config.to_text()).expect("what is written can be read");
    let small = config.r < 1 << 20 && config.rank_pattern.iter().all(|(_, rank)| *rank < 1 << 20);
    let Ok(adapted) = Adapted::new(model.clone(), config) else { return };
    if small {
        use planaria_nn::models::{Architecture, Stage};
        let _ = adapted.parameters(&Stage::whole(&adapted));
    }
}

/// A recipe for merging, of any form, over models of the test data; nothing is written.
pub(crate) fn recipe(bytes: &[u8]) {
    use planaria_merge::{Inputs, Missing};
    let text = String::from_utf8_lossy(bytes);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/merge");
    let options = planaria_merge::Options { root: planaria_merge::Root::new(folder), ..Default::default() };
    let inputs = [Missing::Refuse, Missing::Skip, Missing::Take].map(Inputs::Tensors);
    for inputs in inputs.into_iter().chain([Inputs::Models]) {
        let _ = planaria_merge::plan_any(&text, inputs, &options);
    }
}

/// Meshes, layouts and regions as text: what is printed can be parsed.
pub(crate) fn text(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(mesh) = text.parse::<Mesh>() {
        assert_eq!(mesh.to_string().parse::<Mesh>().expect("a mesh comes back"), mesh);
    }
    if let Ok(region) = text.parse::<Region>() {
        assert_eq!(region.to_string().parse::<Region>().expect("a region comes back"), region);
    }
    let Ok(spec) = text.parse::<TensorSpec>() else { return };
    let again = spec.to_string().parse::<TensorSpec>().expect("a layout comes back");
    assert_eq!(again.to_string(), spec.to_string());
    let mesh: Mesh = "dp=2 tp=3".parse().expect("a mesh");
    if let Ok(layout) = spec.on(&mesh) {
        let _ = layout.piece(5);
    }
}

/// The address of a store: a store that says it again, or an error. Nothing is asked there.
pub(crate) fn url(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _ = planaria_store::local_path(&text);
    let none = std::iter::empty::<(String, String)>();
    if let Ok(store) = planaria_store::open_with(&text, &Variables::from_iter(none)) {
        assert!(!store.address().is_empty(), "{text:?}");
    }
}
