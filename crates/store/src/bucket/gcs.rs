//! `gs://bucket/prefix`: Google.

use super::common::{bad, prefix, requests, retry};
use super::{Arc, Result, Store, Variables, metadata, refuse};
use crate::object::{Object, Words};
use object_store::gcp::GoogleCloudStorageBuilder;

const WORDS: Words = Words {
    place: "bucket",
    credentials: "GOOGLE_APPLICATION_CREDENTIALS",
    endpoint: "GOOGLE_BASE_URL",
    region: "the location of the bucket",
};

/// Variables that give credentials, or say that none are wanted.
const CREDENTIALS: [&str; 6] = [
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_BEARER_TOKEN",
    "GOOGLE_SKIP_SIGNATURE",
];

/// Opens a bucket with the credentials of the variables, else of `gcloud`, else of the machine it runs on.
pub(crate) fn open(url: &str, variables: &Variables) -> Result<Arc<dyn Store>> {
    let known = variables.0.iter().filter(|(name, value)| name.starts_with("GOOGLE_") && !value.is_empty());
    let builder = known.fold(GoogleCloudStorageBuilder::new(), |builder, (name, value)| {
        match name.to_ascii_lowercase().parse() {
            Ok(key) => builder.with_config(key, value),
            Err(_) => builder,
        }
    });
    let login = variables
        .get("HOME")
        .map(|home| format!("{home}/.config/gcloud/application_default_credentials.json"))
        .is_some_and(|path| std::path::Path::new(&path).exists());
    let has_credentials = login || CREDENTIALS.iter().any(|name| variables.get(name).is_some());
    if !has_credentials && !metadata::answers(metadata::USUAL) {
        return Err(refuse(
            url,
            "no credentials: set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account, or run \
             `gcloud auth application-default login`; the metadata service of this machine does not answer",
        ));
    }
    let options = retry(url, variables)?;
    let built =
        builder.with_url(url).with_retry(requests(&options)).build().map_err(|error| bad(url, &error))?;
    Ok(Arc::new(Object::bucket(Arc::new(built), url, prefix(url), &WORDS, options)))
}
