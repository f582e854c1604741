//! The files of the page.

/// The page itself.
pub(crate) const PAGE: &str = include_str!("page/index.html");

/// How it looks.
pub(crate) const STYLE: &str = include_str!("page/board.css");

/// Its scripts in the order that it loads them.
pub(crate) const SCRIPTS: [(&str, &str); 5] = [
    ("chart.js", include_str!("page/chart.js")),
    ("source.js", include_str!("page/source.js")),
    ("cluster.js", include_str!("page/cluster.js")),
    ("pipeline.js", include_str!("page/pipeline.js")),
    ("board.js", include_str!("page/board.js")),
];

/// The file of a path, with its type.
pub(crate) fn file(path: &str) -> Option<(&'static str, &'static str)> {
    match path {
        "/" => Some(("text/html; charset=utf-8", PAGE)),
        "/board.css" => Some(("text/css; charset=utf-8", STYLE)),
        _ => {
            let name = path.strip_prefix('/')?;
            let script = SCRIPTS.iter().find(|(known, _)| *known == name);
            script.map(|(_, text)| ("text/javascript; charset=utf-8", *text))
        }
    }
}
