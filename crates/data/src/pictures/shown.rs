//! What messages show: pictures, and videos as their frames, in files.

use super::{Alpha, Grid, Patches, Picture, Preprocess};
use crate::chat::{Json, Refusal};
use planaria_store::checksum;
use std::path::{Path, PathBuf};

/// Largest file of a picture.
const LARGEST: u64 = 1 << 28;

/// Tokens of a frame of a video at least and at most, and of all frames together, where its folder allows as many and nothing else is said.
const FRAME: (usize, usize) = (128, 768);
const ALL_FRAMES: usize = 115_200;

/// What kind of thing is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownKind {
    /// A picture.
    Image,
    /// A video.
    Video,
}

/// A picture or a video that a message shows, not read yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// The number of the message.
    pub message: usize,
    /// What it is.
    pub kind: ShownKind,
    /// The file of a picture, or those of the frames of a video.
    pub files: Vec<PathBuf>,
    /// Frames a second, where a video says how many.
    pub fps: Option<f64>,
    /// Pixels that it has.
    pub pixels: Pixels,
}

/// Pixels of a picture or a frame, where the message says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pixels {
    /// `min_pixels`.
    pub least: Option<usize>,
    /// `max_pixels`.
    pub most: Option<usize>,
    /// `total_pixels`: of all frames of a video together.
    pub total: Option<usize>,
}

impl Pixels {
    fn of(part: &Json, field: &str) -> Result<Pixels, Refusal> {
        let read = |key: &str| match part.get(key) {
            None => Ok(None),
            Some(Json::Integer(n)) if *n > 0 && *n < 1 << 40 => Ok(Some(*n as usize)),
            Some(other) => Err(wrong(
                &format!("{field}.{key}"),
                format!("a number of pixels is expected, found {other}"),
            )),
        };
        let pixels =
            Pixels { least: read("min_pixels")?, most: read("max_pixels")?, total: read("total_pixels")? };
        match (pixels.least, pixels.most) {
            (Some(least), Some(most)) if least > most => Err(wrong(
                &format!("{field}.min_pixels"),
                format!("{least} is more than the {most} of `max_pixels`"),
            )),
            _ => Ok(pixels),
        }
    }
}

/// The same as patches.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// What it is.
    pub kind: ShownKind,
    /// Its patches.
    pub patches: Patches,
    /// Seconds from one frame of its grid to the next, where it says so.
    pub seconds: Option<f64>,
}

/// Names of files that parts without one take, in their order.
struct Column<'a> {
    name: &'static str,
    left: std::slice::Iter<'a, Json>,
}

impl<'a> Column<'a> {
    fn of(name: &'static str, columns: &'a [(String, Json)]) -> Column<'a> {
        let list = columns.iter().find(|(key, _)| key == name).and_then(|(_, value)| value.as_list());
        Column { name, left: list.unwrap_or(&[]).iter() }
    }

    /// Refuses files that nothing shows.
    fn finish(mut self) -> Result<(), Refusal> {
        match self.left.next() {
            None => Ok(()),
            Some(first) => {
                Err(wrong(self.name, format!("{first} and what follows it have no place in the messages")))
            }
        }
    }
}

fn wrong(field: &str, problem: String) -> Refusal {
    Refusal::Field { field: field.to_string(), problem }
}

impl Item {
    /// All that messages show, in order: parts `{"type": "image", "image": FILE}` and `{"type": "video", "video": [FRAME, ..]}`
    /// with files relative to a folder. Parts without a file take the next of the columns `images` and `videos`.
    pub fn all(messages: &[Json], columns: &[(String, Json)], folder: &Path) -> Result<Vec<Item>, Refusal> {
        let mut out = Vec::new();
        let (mut images, mut videos) = (Column::of("images", columns), Column::of("videos", columns));
        for (message, value) in messages.iter().enumerate() {
            let parts = value.get("content").and_then(Json::as_list).unwrap_or(&[]);
            for (number, part) in parts.iter().enumerate() {
                let field = format!("messages[{message}].content[{number}]");
                match part.get("type").and_then(Json::as_text) {
                    Some(kind @ ("image" | "image_url")) => {
                        let keys = [kind, "path", "url"];
                        let name = keys.iter().find_map(|key| part.get(key)).or_else(|| images.left.next());
                        let files = vec![file(name, &field, folder)?];
                        let pixels = Pixels::of(part, &field)?;
                        out.push(Item { message, kind: ShownKind::Image, files, fps: None, pixels });
                    }
                    Some("video") => {
                        let frames = part.get("video").or_else(|| videos.left.next());
                        let files = frames_of(frames, &field, folder)?;
                        let fps = part.get("fps").map(|fps| rate(fps, &field)).transpose()?;
                        let pixels = Pixels::of(part, &field)?;
                        out.push(Item { message, kind: ShownKind::Video, files, fps, pixels });
                    }
                    _ => {}
                }
            }
        }
        images.finish()?;
        videos.finish()?;
        Ok(out)
    }

    /// The settings with the bounds of its pixels: those that its message says, and else those of the folder, within which frames have
    /// bounds of their own and share what all of them may have.
    fn bounded(&self, settings: &Preprocess) -> Preprocess {
        let Pixels { least, most, total } = self.pixels;
        let token = (settings.patch * settings.merge).pow(2);
        let (mut low, mut high) = (settings.least, settings.most);
        if self.kind == ShownKind::Video {
            let (fewest, largest) = (FRAME.0 * token, FRAME.1 * token);
            // A folder whose pictures are all smaller keeps its own.
            low = if high >= fewest { low.max(fewest) } else { low };
            high = high.min(largest).max(low);
        }
        low = least.unwrap_or(low.min(most.unwrap_or(low)));
        high = most.unwrap_or(high.max(low));
        if self.kind == ShownKind::Video {
            let all = total.unwrap_or(ALL_FRAMES * token);
            // Frames that become one patch share its tokens.
            let share = all / self.files.len().max(1) * settings.frames;
            high = high.min(share.max(low + low / 20)).max(low);
        }
        Preprocess { least: low, most: high, ..settings.clone() }
    }

    /// Reads it.
    pub fn read(&self, settings: &Preprocess) -> Result<Seen, Refusal> {
        let frames = self.files.iter().map(|file| decoded(file, &bytes(file)?));
        let frames = frames.collect::<Result<Vec<Picture>, Refusal>>()?;
        let patches = self.bounded(settings).video(&frames).map_err(|refusal| self.refused(&refusal))?;
        Ok(Seen { kind: self.kind, patches, seconds: self.fps.map(|fps| settings.frames as f64 / fps) })
    }

    /// How its patches will lie, and a number that changes with its files. They are decoded, or where they are trusted only their
    /// first bytes are believed.
    pub fn measure(&self, settings: &Preprocess, trusted: bool) -> Result<(Grid, u32), Refusal> {
        let (mut sizes, mut sum) = (Vec::with_capacity(self.files.len()), 0);
        for file in &self.files {
            let bytes = bytes(file)?;
            sizes.push(match trusted {
                true => Picture::measure(&bytes).map_err(|refusal| in_file(file, &refusal))?,
                false => {
                    let picture = decoded(file, &bytes)?;
                    (picture.height, picture.width)
                }
            });
            sum = checksum::append(sum, &bytes);
        }
        let grid = self.bounded(settings).grid(&sizes).map_err(|refusal| self.refused(&refusal))?;
        Ok((grid, sum))
    }

    fn refused(&self, refusal: &super::Refusal) -> Refusal {
        in_file(self.files.first().map_or(Path::new("video"), PathBuf::as_path), refusal)
    }
}

fn in_file(file: &Path, refusal: &super::Refusal) -> Refusal {
    Refusal::Picture { file: file.display().to_string(), problem: refusal.to_string() }
}

/// A file that a part names: a text, or an object with a `url` that is one.
fn file(name: Option<&Json>, field: &str, folder: &Path) -> Result<PathBuf, Refusal> {
    let name = name.map(|name| name.get("url").unwrap_or(name));
    let Some(text) = name.and_then(Json::as_text) else {
        let found = name.map_or("nothing".to_string(), ToString::to_string);
        return Err(wrong(field, format!("the name of a file is expected, found {found}")));
    };
    let text = text.strip_prefix("file://").unwrap_or(text);
    if ["http://", "https://", "data:"].iter().any(|scheme| text.starts_with(scheme)) {
        let start: String = text.chars().take(60).collect();
        return Err(wrong(
            field,
            format!("'{start}' is not the name of a file; download it and name the file"),
        ));
    }
    Ok(folder.join(text))
}

fn frames_of(frames: Option<&Json>, field: &str, folder: &Path) -> Result<Vec<PathBuf>, Refusal> {
    let list = frames.and_then(Json::as_list).filter(|list| !list.is_empty());
    let Some(list) = list else {
        let problem =
            "a list of frames is expected, each the name of a picture; take them out of a video with ffmpeg";
        return Err(wrong(field, problem.to_string()));
    };
    list.iter().map(|name| file(Some(name), field, folder)).collect()
}

fn rate(value: &Json, field: &str) -> Result<f64, Refusal> {
    let rate = match value {
        Json::Integer(n) => *n as f64,
        Json::Float(x) => *x,
        _ => f64::NAN,
    };
    if rate > 0.0 && rate.is_finite() {
        return Ok(rate);
    }
    Err(wrong(&format!("{field}.fps"), format!("frames a second are a number above 0, found {value}")))
}

fn bytes(file: &Path) -> Result<Vec<u8>, Refusal> {
    let refuse = |problem: String| Refusal::Picture { file: file.display().to_string(), problem };
    let about = std::fs::metadata(file).map_err(|error| refuse(error.to_string()))?;
    if !about.is_file() || about.len() > LARGEST {
        return Err(refuse(format!("it is not a regular file of at most {} MB", LARGEST >> 20)));
    }
    std::fs::read(file).map_err(|error| refuse(error.to_string()))
}

fn decoded(file: &Path, bytes: &[u8]) -> Result<Picture, Refusal> {
    Picture::decode(bytes, Alpha::Drop).map_err(|refusal| in_file(file, &refusal))
}

/// How a model sees: which tokens stand for what is shown, and how that becomes patches.
#[derive(Clone, Debug, PartialEq)]
pub struct Sight {
    /// The token that stands for a part of a picture.
    pub image: u32,
    /// The token that stands for a part of a video.
    pub video: u32,
    /// How pictures become patches.
    pub settings: Preprocess,
}

impl Sight {
    /// Whether a token stands for something shown.
    pub fn is_mark(&self, token: u32) -> bool {
        token == self.image || token == self.video
    }

    /// Which tokens of a rendered conversation stand where once each thing shown has as many marks as vectors. Marks that did not
    /// come from something shown, such as those that somebody wrote into a text, are noticed by their number.
    pub fn expand(&self, tokens: &[u32], shown: &[(ShownKind, Grid)]) -> Result<Vec<usize>, Refusal> {
        let mut out = Vec::with_capacity(tokens.len());
        for (kind, mark) in [(ShownKind::Image, self.image), (ShownKind::Video, self.video)] {
            let expected = shown.iter().filter(|(of, _)| *of == kind).count();
            let found = tokens.iter().filter(|&&token| token == mark).count();
            if found != expected {
                let what = if kind == ShownKind::Image { "pictures" } else { "videos" };
                return Err(Refusal::Marks { what, found, expected });
            }
        }
        let of = |kind: ShownKind| shown.iter().filter(move |(of, _)| *of == kind).map(|(_, grid)| grid);
        let (mut images, mut videos) = (of(ShownKind::Image), of(ShownKind::Video));
        for (at, &token) in tokens.iter().enumerate() {
            let grid = match token {
                token if token == self.image => images.next(),
                token if token == self.video => videos.next(),
                _ => None,
            };
            let count = grid.map_or(1, |grid| grid.tokens(self.settings.merge));
            out.extend(std::iter::repeat_n(at, count));
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(part: &str) -> Result<Item, String> {
        let message = format!(r#"{{"role": "user", "content": [{part}]}}"#);
        let message = Json::parse(&message).unwrap();
        let all = Item::all(&[message], &[], Path::new("")).map_err(|refusal| refusal.to_string())?;
        Ok(all.into_iter().next().unwrap())
    }

    fn video(frames: usize, more: &str) -> String {
        let names: Vec<String> = (0..frames).map(|frame| format!("\"{frame}.png\"")).collect();
        format!(r#"{{"type": "video", "video": [{}]{more}}}"#, names.join(", "))
    }

    #[test]
    fn frames_have_bounds_of_their_own_and_share_a_budget() {
        let token = 28 * 28;
        let published = Preprocess { least: 4 * token, most: 16384 * token, ..Preprocess::default() };
        let bounds = |part: &str, settings: &Preprocess| {
            let bounded = item(part).unwrap().bounded(settings);
            (bounded.least, bounded.most)
        };
        assert_eq!(bounds(r#"{"type": "image", "image": "x"}"#, &published), (4 * token, 16384 * token));
        assert_eq!(bounds(&video(4, ""), &published), (128 * token, 768 * token));
        // 768 frames share 115,200 tokens, two frames to a patch.
        assert_eq!(bounds(&video(768, ""), &published), (128 * token, 300 * token));
        // No frame falls below the least, and a little above it.
        assert_eq!(bounds(&video(4000, ""), &published).1, 128 * token + 128 * token / 20);
        let own = r#", "min_pixels": 784, "max_pixels": 7840, "total_pixels": 15680"#;
        assert_eq!(bounds(&video(2, own), &published), (784, 7840));
        assert_eq!(bounds(&video(8, own), &published), (784, 3920));
        // A folder of small pictures has small frames.
        let small = Preprocess { least: token, most: 8 * token, ..Preprocess::default() };
        assert_eq!(bounds(&video(4, ""), &small), (token, 8 * token));
        for (more, told) in [
            (r#", "max_pixels": -1"#, "content[0].max_pixels"),
            (r#", "total_pixels": "many""#, "content[0].total_pixels"),
            (r#", "min_pixels": 9, "max_pixels": 8"#, "more than the 8 of `max_pixels`"),
        ] {
            let error = item(&video(2, more)).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }
}
