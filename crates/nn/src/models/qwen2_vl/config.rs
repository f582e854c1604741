//! The configuration of Qwen2-VL and Qwen2.5-VL: the text model's, and that of the vision tower.

use super::positions::Marks;
use crate::error::{Error, Result};
use crate::models::decoder::{DecoderConfig, Family, windows};
use crate::models::json::Reader;
use serde_json::{Map, Value, json};

/// `qwen2_vl`.
pub static QWEN2_VL: Family = Family {
    model_type: "qwen2_vl",
    architecture: "Qwen2VLForConditionalGeneration",
    keys: &["vision_config", "image_token_id", "video_token_id"],
    read,
    write,
};

/// `qwen2_5_vl`.
pub static QWEN2_5_VL: Family = Family {
    model_type: "qwen2_5_vl",
    architecture: "Qwen2_5_VLForConditionalGeneration",
    keys: &["vision_config", "image_token_id", "video_token_id"],
    read,
    write,
};

fn read(read: &Reader<'_>, config: &mut DecoderConfig) -> Result<()> {
    config.qkv_bias = true;
    config.windows = windows(read, config.layers, |layer, first| layer >= first)?;
    Ok(())
}

/// The rest is written as it was read.
fn write(_: &DecoderConfig, _: &mut Map<String, Value>) {}

/// The vision tower.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionConfig {
    /// Blocks.
    pub depth: usize,
    /// Elements of a patch's vector.
    pub width: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Elements between the two products of a feed-forward layer.
    pub inner: usize,
    /// Channels of a picture.
    pub channels: usize,
    /// Side of a patch.
    pub patch: usize,
    /// Frames of a patch.
    pub frames: usize,
    /// Patches on each side of what becomes one token.
    pub merge: usize,
    /// Elements of a token's vector.
    pub out: usize,
    /// What sets the tower of Qwen2.5-VL apart.
    pub newer: Option<Newer>,
}

/// Qwen2.5-VL: norms without a mean, gated feed-forward layers, and windows.
#[derive(Clone, Debug, PartialEq)]
pub struct Newer {
    /// Tokens on each side of a window.
    pub window: usize,
    /// Blocks in which patches see their whole frame.
    pub whole: Vec<usize>,
    /// Positions of a second of video.
    pub per_second: f64,
}

impl VisionConfig {
    /// Elements of a patch.
    pub fn patch_width(&self) -> usize {
        self.channels * self.frames * self.patch * self.patch
    }

    fn read(map: &Map<String, Value>, newer: bool) -> Result<VisionConfig> {
        let read = Reader::inside(map, "vision_config.");
        let patch = match read.maybe_size("patch_size")? {
            Some(patch) => patch,
            None => read.maybe_size("spatial_patch_size")?.unwrap_or(14),
        };
        let channels = match read.maybe_size("in_chans")? {
            Some(channels) => channels,
            None => read.maybe_size("in_channels")?.unwrap_or(3),
        };
        let merge = read.maybe_size("spatial_merge_size")?.unwrap_or(2);
        let frames = read.maybe_size("temporal_patch_size")?.unwrap_or(2);
        let (depth, heads) = (read.size("depth")?, read.size("num_heads")?);
        let config = match newer {
            false => {
                let width = read.size("embed_dim")?;
                expect(&read, "hidden_act", "quick_gelu")?;
                let inner = (width as f64 * read.number("mlp_ratio", 4.0)?) as usize;
                let out = read.size("hidden_size")?;
                VisionConfig { depth, width, heads, inner, channels, patch, frames, merge, out, newer: None }
            }
            true => {
                expect(&read, "hidden_act", "silu")?;
                let side = patch.max(1) * merge.max(1);
                let whole = read.list("fullatt_block_indexes")?.unwrap_or_default();
                let newer = Newer {
                    window: read.maybe_size("window_size")?.unwrap_or(112) / side,
                    whole: whole.iter().filter_map(|v| usize::try_from(v.as_u64()?).ok()).collect(),
                    per_second: read.number("tokens_per_second", 2.0)?,
                };
                let (width, inner) = (read.size("hidden_size")?, read.size("intermediate_size")?);
                let (out, newer) = (read.size("out_hidden_size")?, Some(newer));
                VisionConfig { depth, width, heads, inner, channels, patch, frames, merge, out, newer }
            }
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        let refuse = |what: String| Err(Error::Sizes { what: format!("vision_config: {what}") });
        let VisionConfig { depth, width, heads, patch, merge, frames, channels, .. } = *self;
        if depth > 1 << 16 {
            return refuse(format!("depth is {depth}"));
        }
        if [patch, merge, frames, channels].iter().any(|&n| n == 0 || n > 1 << 12) {
            return refuse(format!(
                "sizes of patches {patch}, merges {merge}, frames {frames} and channels {channels} must be from 1 to 4096"
            ));
        }
        if !width.is_multiple_of(heads) || !(width / heads).is_multiple_of(4) {
            return refuse(format!(
                "a width of {width} does not divide into {heads} heads of a multiple of 4 elements"
            ));
        }
        if self.newer.as_ref().is_some_and(|newer| newer.window == 0) {
            return refuse(format!("window_size is smaller than one token of {} pixels", patch * merge));
        }
        Ok(())
    }
}

fn expect(read: &Reader<'_>, key: &str, only: &'static str) -> Result<()> {
    match read.text(key, only)? {
        found if found == only => Ok(()),
        found => Err(Error::Unsupported {
            key: format!("vision_config.{key}"),
            found: format!("\"{found}\""),
            hint: format!("only {only} is supported"),
        }),
    }
}

/// A model that sees pictures and videos and writes text.
#[derive(Clone, Debug, PartialEq)]
pub struct Qwen2VlConfig {
    /// The text model.
    pub text: DecoderConfig,
    /// The tower.
    pub vision: VisionConfig,
    /// How pairs of a head are shared out on the three axes.
    pub sections: [usize; 3],
    /// Which tokens stand for what is seen.
    pub marks: Marks,
}

impl Qwen2VlConfig {
    /// Reads the object of a `config.json`, flat as published or with the text model in an object of its own.
    pub fn read(map: Map<String, Value>, family: &'static Family) -> Result<Qwen2VlConfig> {
        let map = flat(map)?;
        let read = Reader::new(&map);
        let newer = family.model_type == QWEN2_5_VL.model_type;
        let Some(vision) = read.object("vision_config")? else {
            return Err(Error::Key {
                key: "vision_config".into(),
                found: "missing".into(),
                expected: "an object",
            });
        };
        let vision = VisionConfig::read(vision, newer)?;
        let sections = sections(&read)?;
        let token = |key: &str| read.size(key).map(|id| id as i64);
        let marks = Marks {
            image: token("image_token_id")?,
            video: token("video_token_id")?,
            merge: vision.merge,
            per_second: vision.newer.as_ref().map(|newer| newer.per_second),
        };
        let text = DecoderConfig::read(map.clone(), family)?;
        if sections.iter().sum::<usize>() * 2 != text.head_dim {
            let what =
                format!("mrope_section {sections:?} does not add up to half of head_dim {}", text.head_dim);
            return Err(Error::Sizes { what });
        }
        if vision.out != text.hidden_size {
            let what = format!(
                "the tower gives {} elements and the text model takes {}",
                vision.out, text.hidden_size
            );
            return Err(Error::Sizes { what });
        }
        Ok(Qwen2VlConfig { text, vision, sections, marks })
    }
}

fn sections(read: &Reader<'_>) -> Result<[usize; 3]> {
    let wrong = |found: String| Error::Key {
        key: "rope_scaling.mrope_section".into(),
        found,
        expected: "three sizes",
    };
    let scaling = read.object("rope_scaling")?;
    let Some(list) = scaling.and_then(|map| map.get("mrope_section")) else {
        return Err(wrong("missing".into()));
    };
    let sizes: Option<Vec<usize>> =
        list.as_array().and_then(|list| list.iter().map(|v| usize::try_from(v.as_u64()?).ok()).collect());
    match sizes.as_deref() {
        Some(&[a, b, c]) if a.max(b).max(c) < 1 << 20 => Ok([a, b, c]),
        _ => Err(wrong(list.to_string())),
    }
}

/// The published form of a configuration: what some libraries keep in `text_config` and `rope_parameters` stands at the top.
fn flat(mut map: Map<String, Value>) -> Result<Map<String, Value>> {
    if let Some(text) = map.remove("text_config") {
        let Value::Object(text) = text else {
            return Err(Error::Key {
                key: "text_config".into(),
                found: text.to_string(),
                expected: "an object",
            });
        };
        for (key, value) in text {
            if key != "model_type" && key != "architectures" {
                map.entry(key).or_insert(value);
            }
        }
    }
    if let Some(Value::Object(rope)) = map.remove("rope_parameters") {
        if let Some(theta) = rope.get("rope_theta") {
            map.insert("rope_theta".into(), theta.clone());
        }
        let section = rope.get("mrope_section").cloned().unwrap_or(Value::Null);
        map.insert("rope_scaling".into(), json!({ "type": "mrope", "mrope_section": section }));
    }
    if let Some(Value::Object(vision)) = map.get_mut("vision_config") {
        // It is always the same.
        vision.remove("rope_parameters");
    }
    Ok(map)
}

/// What stands at the top of today's form; the rest is the text model's.
const TOP: [&str; 12] = [
    "architectures",
    "model_type",
    "vision_config",
    "image_token_id",
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    "vision_token_id",
    "tie_word_embeddings",
    "dtype",
    "torch_dtype",
    "transformers_version",
];

/// Today's form of a published configuration: the text model in `text_config`, with its positions in `rope_parameters`.
pub(super) fn nested(config: Value) -> Value {
    let Value::Object(map) = config else { return config };
    let (mut top, mut text): (Map<String, Value>, Map<String, Value>) =
        map.into_iter().partition(|(key, _)| TOP.contains(&key.as_str()));
    let model_type = top.get("model_type").and_then(Value::as_str).unwrap_or_default().to_string();
    let scaling = text.remove("rope_scaling").unwrap_or(Value::Null);
    let rope = json!({
        "rope_type": "default",
        "rope_theta": text.remove("rope_theta"),
        "mrope_section": scaling["mrope_section"],
    });
    text.insert("rope_parameters".into(), rope);
    text.insert("model_type".into(), format!("{model_type}_text").into());
    if let Some(vision) = top.get_mut("vision_config") {
        vision["model_type"] = format!("{model_type}_vision").into();
    }
    top.insert("text_config".into(), text.into());
    top.into()
}
