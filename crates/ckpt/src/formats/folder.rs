//! Finding out what a folder or file is.

use super::source::{Builder, Format, Part, Source};
use super::{dcp, flex, ours, paddle, safetensors, shards, torch, zip};
use crate::error::{Error, Result};
use planaria_store::{Store, StoreExt, join, locate};
use std::sync::Arc;

/// What to open where a folder leaves a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Which save of a Paddle flex folder, by the number in `7.metadata`. Needed when there are several.
    pub uid: Option<u64>,
}

/// The folders of a flex checkpoint of a whole training state.
const FLEX_PARTS: [(&str, Part); 4] = [
    ("model_state", Part::Model),
    ("master_weight", Part::MasterWeights),
    ("optimizer_state", Part::Optimizer),
    ("ema_state", Part::Ema),
];

/// Opens the checkpoint at a path or URL, a folder or a file.
pub fn open_url(url: &str, options: &OpenOptions) -> Result<Source> {
    let (store, name) = locate(url)?;
    open(&store, &name, options)
}

/// Opens the checkpoint at `at`, a folder (empty: the root) or a file of the store.
pub fn open(store: &Arc<dyn Store>, at: &str, options: &OpenOptions) -> Result<Source> {
    if !at.is_empty() && store.exists(at)? {
        let (folder, name) = at.rsplit_once('/').unwrap_or(("", at));
        return open_file(store, folder, name);
    }
    let entries = store.list(at)?;
    let folders: Vec<String> =
        entries.iter().filter(|entry| !entry.is_file()).map(|entry| entry.short().to_string()).collect();
    let files: Vec<String> =
        entries.iter().filter(|entry| entry.is_file()).map(|entry| entry.short().to_string()).collect();
    let source = Folder { store, at, files, folders }.open(options)?;
    Ok(Source { folder: Some(at.to_string()), ..source })
}

fn open_file(store: &Arc<dyn Store>, folder: &str, name: &str) -> Result<Source> {
    let names = [name.to_string()];
    if name.ends_with(".safetensors") {
        return safetensors::open_file(store, folder, name);
    }
    if name.ends_with(".distcp") {
        let found = "it is one file of a distributed checkpoint; name its folder".to_string();
        return Err(Error::UnknownFormat { at: join(folder, name), found });
    }
    if zip::looks_like_zip(&*store.reader(&join(folder, name))?)? {
        return torch::open_file(store, folder, &names);
    }
    if [".pdparams", ".pdopt", ".pdema"].iter().any(|ending| name.ends_with(ending)) {
        return paddle::open_files(store, folder, &names);
    }
    if [".pt", ".pth", ".bin", ".ckpt"].iter().any(|ending| name.ends_with(ending)) {
        return torch::open_file(store, folder, &names);
    }
    let at = join(folder, name);
    let found = "known files end in .safetensors, .pdparams, .pdopt, .pt, .pth, .bin or .ckpt".to_string();
    Err(Error::UnknownFormat { at, found })
}

struct Folder<'a> {
    store: &'a Arc<dyn Store>,
    at: &'a str,
    files: Vec<String>,
    folders: Vec<String>,
}

impl Folder<'_> {
    fn open(&self, options: &OpenOptions) -> Result<Source> {
        let has = |name: &str| self.files.iter().any(|file| file == name);
        let ends = |ending: &str| self.files.iter().any(|file| file.ends_with(ending));
        if has("COMMIT") && has("manifest.json") {
            return ours::open_folder(self.store, self.at);
        }
        let at = || join(&self.store.address(), self.at);
        if has("COMMIT") {
            return Err(crate::folder::without_manifest(&at()));
        }
        // A mark inside tells our manifest from another file of that name.
        if has("SAVING") || (has("manifest.json") && ours::has_manifest(self.store, self.at)?) {
            return Err(ours::unfinished(&at()));
        }
        if has(".metadata") || self.files.iter().any(|name| dcp::is_rank_metadata(name)) {
            return dcp::open_folder(self.store, self.at, &self.files);
        }
        if self.files.iter().any(|name| flex::uid_of(name).is_some()) {
            return self.open_flex(options);
        }
        if ends(".distcp") {
            let what = format!("'{}' has data files and no metadata", at());
            return Err(Error::Torn { what });
        }
        if ends(".safetensors") || ends(".safetensors.index.json") {
            return safetensors::open_folder(self.store, self.at, &self.files);
        }
        if let Some(source) = self.open_flex_parts(options)? {
            return Ok(source);
        }
        // Shards that were not merged because the merge failed or was not asked for.
        if self.folders.iter().any(|name| name == "sharded") {
            return open(self.store, &join(self.at, "sharded"), options);
        }
        if ends(".pdparams") || ends(".pdopt") {
            return self.open_paddle();
        }
        for stem in ["pytorch_model", "adapter_model", "diffusion_pytorch_model"] {
            let is_torch = |name: &&String| name.starts_with(stem) && !name.ends_with(".safetensors");
            let torch: Vec<String> = self.files.iter().filter(is_torch).cloned().collect();
            if torch.iter().any(|name| name.ends_with(".bin")) {
                return shards::open((&**self.store, self.at), &torch, (stem, ".bin"), |files| {
                    torch::open_file(self.store, self.at, files)
                });
            }
        }
        Err(self.unknown())
    }

    fn unknown(&self) -> Error {
        let mut names: Vec<&str> =
            self.files.iter().chain(&self.folders).map(String::as_str).take(6).collect();
        if names.is_empty() {
            names.push("nothing");
        }
        let found = format!("it holds {}", names.join(", "));
        let at = join(&self.store.address(), self.at);
        Error::UnknownFormat { at, found }
    }

    fn open_flex(&self, options: &OpenOptions) -> Result<Source> {
        let mut builder = Builder::new(self.store, self.at, Format::PaddleFlex);
        flex::add(&mut builder, self.uid(&self.files, options)?, Part::Model)?;
        builder.finish()
    }

    /// The save asked for, or the only one.
    fn uid(&self, files: &[String], options: &OpenOptions) -> Result<u64> {
        let mut uids: Vec<u64> = files.iter().filter_map(|name| flex::uid_of(name)).collect();
        uids.sort_unstable();
        match (options.uid, &uids[..]) {
            (Some(uid), uids) if uids.contains(&uid) => Ok(uid),
            (None, [uid]) => Ok(*uid),
            _ => {
                let found = uids.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
                let at = join(&self.store.address(), self.at);
                Err(Error::Ambiguous { at, found: format!("saves {found}") })
            }
        }
    }

    /// `model_state/`, `optimizer_state/` and so on, each a flex checkpoint.
    fn open_flex_parts(&self, options: &OpenOptions) -> Result<Option<Source>> {
        let mut builder = Builder::new(self.store, self.at, Format::PaddleFlex);
        let mut found = false;
        for (name, part) in FLEX_PARTS {
            if !self.folders.iter().any(|folder| folder == name) {
                continue;
            }
            builder.folder = join(self.at, name);
            let files = self.store.file_names(&builder.folder)?;
            if files.iter().any(|file| flex::uid_of(file).is_some()) {
                found = true;
                flex::add(&mut builder, self.uid(&files, options)?, part)?;
            }
        }
        if found { builder.finish().map(Some) } else { Ok(None) }
    }

    /// Files of one process; those of several processes carry their ranks in the name and no places.
    fn open_paddle(&self) -> Result<Source> {
        let files: Vec<String> = self
            .files
            .iter()
            .filter(|name| name.ends_with(".pdparams") || name.ends_with(".pdopt"))
            .filter(|name| !matches!(name.as_str(), "scheduler.pdparams" | "scaler.pdparams"))
            .cloned()
            .collect();
        for name in &files {
            let stem = name.rsplit_once('.').map_or(name.as_str(), |(stem, _)| stem);
            let ranks = stem.split_once('.').map_or("", |(_, ranks)| ranks);
            if ["tp", "pp", "shard", "moe"].iter().any(|axis| ranks.starts_with(axis)) {
                let what = "each rank wrote its own slices, and nothing says where they belong".to_string();
                return Err(Error::Unsupported { file: join(self.at, name), what });
            }
        }
        if files.is_empty() {
            return Err(self.unknown());
        }
        // The parts of a sharded model have an index or numbers; an optimizer file stands beside them.
        let (model, rest): (Vec<String>, Vec<String>) =
            self.files.iter().cloned().partition(|name| name.starts_with("model_state"));
        if !model.iter().any(|name| name.ends_with(".pdparams")) {
            return paddle::open_files(self.store, self.at, &files);
        }
        shards::open((&**self.store, self.at), &model, ("model_state", ".pdparams"), |chosen| {
            let beside = files.iter().filter(|name| rest.contains(name));
            let all: Vec<String> = chosen.iter().chain(beside).cloned().collect();
            paddle::open_files(self.store, self.at, &all)
        })
    }
}
