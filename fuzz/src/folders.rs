//! What each target of folders does with its bytes: one file of a checkpoint, a model or a program replaced, beside others that are
//! whole; or only the names of files.

use crate::parsers::{Companions, companions, read_all, replaced, stored};
use planaria_ckpt::convert::{self, ConvertOptions, To};
use planaria_ckpt::formats::{self, OpenOptions};
use planaria_merge::{Options, Root, plan};
use planaria_store::{check_name, checksum};
use std::sync::OnceLock;

/// A file of `paddle.save`: parameters, and the state of an optimizer.
pub(crate) fn saved(bytes: &[u8]) {
    for name in ["x.pdparams", "x.pdopt"] {
        read_all(&stored(&[(name, bytes)]), name);
    }
}

/// What one rank saved in a Paddle folder, as a pickle and as safetensors.
pub(crate) fn distcp(bytes: &[u8]) {
    static PICKLED: OnceLock<Companions> = OnceLock::new();
    static PLAIN: OnceLock<Companions> = OnceLock::new();
    let pickled = PICKLED.get_or_init(|| companions("paddle-checkpoints/tp2"));
    replaced(pickled, "0_0.distcp", bytes);
    let plain = PLAIN.get_or_init(|| companions("paddle-checkpoints/tp2_safetensors"));
    replaced(plain, "0_0.safetensors", bytes);
}

/// The indexes of a Paddle unified checkpoint, each in turn.
pub(crate) fn unified(bytes: &[u8]) {
    static FILES: OnceLock<Companions> = OnceLock::new();
    let files = FILES.get_or_init(|| companions("formats/unified"));
    for name in ["model", "optimizer", "master_weights"] {
        replaced(files, &format!("{name}.safetensors.index.json"), bytes);
    }
}

/// A shard of PyTorch's that says in its header which part of each tensor it has.
pub(crate) fn sharded(bytes: &[u8]) {
    static FILES: OnceLock<Companions> = OnceLock::new();
    let files = FILES.get_or_init(|| companions("torch-dcp/hf_sharded2"));
    replaced(files, "shard-00001-model-00001-of-00001.safetensors", bytes);
}

/// The names of the files of a folder, one a line: which format it is, and whether files are missing.
pub(crate) fn names(bytes: &[u8]) {
    static SMALL: OnceLock<Companions> = OnceLock::new();
    let small = SMALL.get_or_init(|| companions("formats/noindex"));
    let text = String::from_utf8_lossy(bytes);
    let names = text.lines().filter(|name| check_name(name).is_ok()).take(16);
    // A folder cannot have the name of a file, and a file that of a folder.
    let mut seen: Vec<&str> = Vec::new();
    let names = names.filter(|name| {
        let under =
            |a: &str, b: &str| a.strip_prefix(b).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let fits = seen.iter().all(|other| !under(name, other) && !under(other, name));
        seen.extend(fits.then_some(*name));
        fits
    });
    let files: Vec<(&str, &[u8])> =
        names.zip(small.iter().cycle()).map(|(name, (_, bytes))| (name, &bytes[..])).collect();
    read_all(&stored(&files), "");
}

/// The configuration beside weights that are converted to every other form.
pub(crate) fn converted(bytes: &[u8]) {
    static FILES: OnceLock<Companions> = OnceLock::new();
    let files = FILES.get_or_init(|| companions("formats/unified"));
    let mut folder: Vec<(&str, &[u8])> = vec![("config.json", bytes)];
    folder.extend(
        files.iter().filter(|(name, _)| name != "config.json").map(|(n, b)| (n.as_str(), b.as_slice())),
    );
    let store = stored(&folder);
    let Ok(source) = formats::open(&store, "", &OpenOptions::default()) else { return };
    for to in [To::HuggingFace, To::TorchDcp, To::PaddleUnified, To::Planaria] {
        let _ = convert::plan(&source, to, &ConvertOptions::default());
    }
}

/// The commit mark of a checkpoint and of a program, and a program's manifest, with a mark that vouches for it.
pub(crate) fn marks(bytes: &[u8]) {
    static PROGRAM: OnceLock<Companions> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| companions("program-folders/form-1"));
    let sized =
        format!(r#"{{"manifest_size": {}, "manifest_sum": "{:08x}"}}"#, bytes.len(), checksum::crc32c(bytes));
    for new in [&[("COMMIT", bytes)][..], &[("manifest.json", bytes), ("COMMIT", sized.as_bytes())]] {
        let kept = program.iter().filter(|(name, _)| new.iter().all(|(other, _)| other != name));
        let mut files = new.to_vec();
        files.extend(kept.map(|(name, bytes)| (name.as_str(), bytes.as_slice())));
        let store = stored(&files);
        if let Ok((program, _)) = planaria_program::open_folder(&*store, "") {
            let _ = planaria_program::verify(&program);
        }
        let _ = planaria_ckpt::open(&*store, "");
    }
}

/// What a model says of itself where it is merged, its own texts and those of its tokenizer in turn. No tensor is read.
pub(crate) fn merged(bytes: &[u8]) {
    const TOLD: [&str; 4] =
        ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json"];
    const RECIPE: &str = "models: [{model: ., parameters: {weight: 1}}, {model: other, parameters: {weight: 1}}]\n\
        merge_method: linear\ntokenizer_source: union\n";
    static FILES: OnceLock<Companions> = OnceLock::new();
    let whole = FILES.get_or_init(|| companions("merge/models/tok-a"));
    let beside: Vec<String> = whole.iter().map(|(name, _)| format!("other/{name}")).collect();
    for replaced in TOLD {
        let kept = whole
            .iter()
            .filter(|(name, _)| name != replaced)
            .map(|(name, bytes)| (name.as_str(), &bytes[..]));
        let other = beside.iter().zip(whole).map(|(name, (_, bytes))| (name.as_str(), &bytes[..]));
        let files: Vec<(&str, &[u8])> = kept.chain(other).chain([(replaced, bytes)]).collect();
        crate::with_files(&files, |folder| {
            let options = Options { root: Root::new(folder), ..Options::default() };
            let _ = plan(RECIPE, &options);
            // The next model has no index.
            let _ = std::fs::remove_file(folder.join(replaced));
        });
    }
}
