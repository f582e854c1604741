//! What a refusal of an object store means: gone, taken, wrong credentials, wrong place, or worth another try.

use crate::error::Error;
use object_store::Error as Refusal;

/// The words that a kind of store has for what its user can change.
#[derive(Debug)]
pub(crate) struct Words {
    /// What holds the objects.
    pub place: &'static str,
    /// The variables that give credentials.
    pub credentials: &'static str,
    /// The variable that says where the store is.
    pub endpoint: &'static str,
    /// The variable that says in which region it is.
    pub region: &'static str,
}

/// For stores that are not opened by a URL.
pub(super) const PLAIN: Words =
    Words { place: "bucket", credentials: "the credentials", endpoint: "the endpoint", region: "the region" };

/// Codes of answers about a place that does not exist.
const NO_PLACE: [&str; 2] = ["NoSuchBucket", "ContainerNotFound"];
/// Codes of answers that are worth another try, whatever their status.
const BUSY: [&str; 5] = ["SlowDown", "ServerBusy", "RequestTimeout", "OperationTimedOut", "InternalError"];
/// Parts of the addresses of services that give credentials to a machine of a cloud.
const METADATA: [&str; 4] =
    ["/latest/api/token", "/latest/meta-data/", "/metadata/identity/", "/computeMetadata/"];

/// Our error for a refusal of the crate.
pub(super) fn refused(words: &Words, address: &str, name: &str, op: &'static str, error: &Refusal) -> Error {
    let said = text(error);
    let (status, code) = (status(&said), between(&said, "<Code>", "</Code>"));
    let Words { place, credentials, endpoint, region } = words;
    let remote = |message: String, transient: bool| {
        let name = if name.is_empty() { address } else { name };
        Error::Remote { name: name.to_string(), op, message, transient }
    };
    let brief = brief(&said, status);
    if code.is_some_and(|code| NO_PLACE.contains(&code)) {
        return remote(
            format!("the {place} of '{address}' does not exist: make it, or correct the URL"),
            false,
        );
    }
    let denied =
        || remote(format!("access was refused ({brief}): check {credentials}, and their rights"), false);
    match error {
        Refusal::NotFound { .. } => Error::NotFound { name: name.to_string() },
        Refusal::AlreadyExists { .. } | Refusal::Precondition { .. } => {
            Error::AlreadyExists { name: name.to_string() }
        }
        Refusal::PermissionDenied { .. } | Refusal::Unauthenticated { .. } => denied(),
        // Everything that the crate has no kind for.
        Refusal::Generic { .. } => match status {
            _ if METADATA.iter().any(|part| said.contains(part)) => remote(
                format!("no credentials from the metadata service ({brief}): set {credentials}"),
                false,
            ),
            Some(401 | 403) => denied(),
            Some(301 | 302 | 307 | 308) => {
                remote(format!("it is elsewhere ({brief}): correct {region}"), false)
            }
            None if said.contains("incorrectly configured region") => {
                remote(format!("it is in another region: correct {region}"), false)
            }
            Some(408 | 429) => remote(brief, true),
            Some(400..500) if !code.is_some_and(|code| BUSY.contains(&code)) => remote(brief, false),
            Some(_) => remote(brief, true),
            // A request that could not even be made.
            None if said.contains("builder error") => remote(format!("{said}: correct {endpoint}"), false),
            None => remote(format!("{said}; if this lasts, check {endpoint}"), true),
        },
        _ => remote(said, false),
    }
}

/// The words of an error and of those behind it, each once.
pub(crate) fn text(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut inner = error.source();
    while let Some(error) = inner {
        let more = error.to_string();
        if !words.contains(&more) {
            words = format!("{words}: {more}");
        }
        inner = error.source();
    }
    words
}

/// How the crate introduces an answer that is no success.
const STATUS: &str = "status code: ";

/// The status of an answer.
fn status(said: &str) -> Option<u16> {
    said.split_once(STATUS)?.1.get(..3)?.parse().ok()
}

/// Status, code and message of an answer without the rest of its body.
fn brief(said: &str, status: Option<u16>) -> String {
    if status.is_none() {
        return said.to_string();
    }
    let line = said.split_once(STATUS).map_or(said, |(_, rest)| rest);
    let mut brief = line.split([':', '<']).next().unwrap_or(line).trim().to_string();
    let parts = [between(said, "<Code>", "</Code>"), between(said, "<Message>", "</Message>")];
    for part in parts.into_iter().flatten() {
        brief = format!("{brief}, {}", part.lines().next().unwrap_or(part).trim());
    }
    brief
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    Some(text.split_once(start)?.1.split_once(end)?.0.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(said: &str) -> Error {
        let error = Refusal::Generic { store: "S3", source: said.to_string().into() };
        refused(&PLAIN, "s3://b/run", "x", "read", &error)
    }

    #[test]
    fn answers_that_last_are_told_from_those_that_pass() {
        let answer = |status: &str, code: &str| {
            format!(
                "Error performing GET - Server returned non-2xx status code: {status}: <Error><Code>{code}</Code></Error>"
            )
        };
        let passing = [
            answer("503 Service Unavailable", "SlowDown"),
            answer("429 Too Many Requests", "TooMany"),
            answer("400 Bad Request", "RequestTimeout"),
            "Error performing GET http://127.0.0.1:1/ - HTTP error: Connection refused".to_string(),
        ];
        for said in &passing {
            assert!(generic(said).is_transient(), "{said}");
        }
        let lasting = [
            (answer("400 Bad Request", "InvalidArgument"), "InvalidArgument"),
            (answer("403 Forbidden", "InvalidAccessKeyId"), "check the credentials"),
            (answer("404 Not Found", "NoSuchBucket"), "the bucket of 's3://b/run' does not exist"),
            ("Received redirect; incorrectly configured region".to_string(), "correct the region"),
            ("GET http://169.254.169.254/latest/api/token: no".to_string(), "set the credentials"),
            ("builder error: URL scheme is not allowed".to_string(), "correct the endpoint"),
        ];
        for (said, wanted) in &lasting {
            let error = generic(said);
            assert!(!error.is_transient() && error.to_string().contains(wanted), "{error}");
        }
    }
}
