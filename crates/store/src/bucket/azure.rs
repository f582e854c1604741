//! `az://container/prefix`: blobs of Azure, and of its emulator.

use super::common::{bad, prefix, requests, retry};
use super::texts::{AzureConnection, azure_connection};
use super::{Arc, Result, Store, Variables, metadata, refuse};
use crate::object::{Object, Words};
use object_store::azure::{AzureConfigKey as Key, MicrosoftAzureBuilder};

const WORDS: Words = Words {
    place: "container",
    credentials: "AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING",
    endpoint: "AZURE_STORAGE_ENDPOINT, or BlobEndpoint in AZURE_STORAGE_CONNECTION_STRING",
    region: "the region of the account",
};

const CONNECTION: &str = "AZURE_STORAGE_CONNECTION_STRING";

/// Names that the tools of Azure use and the library below does not know.
const OTHER_NAMES: [(&str, Key); 2] =
    [("AZURE_STORAGE_ACCOUNT", Key::AccountName), ("AZURE_STORAGE_KEY", Key::AccessKey)];

/// The account of the emulator; its key is the same everywhere and published by Microsoft.
const EMULATOR: (&str, &str) = (
    "devstoreaccount1",
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
);

/// Opens a container with the credentials of the variables, else of the machine it runs on.
pub(crate) fn open(url: &str, variables: &Variables) -> Result<Arc<dyn Store>> {
    let mut builder = MicrosoftAzureBuilder::new();
    if let Some(text) = variables.get(CONNECTION) {
        builder = connection(builder, url, text, variables)?;
    }
    for (name, value) in variables.0.iter().filter(|(_, value)| !value.is_empty()) {
        let other = OTHER_NAMES.iter().find(|(other, _)| other == name).map(|(_, key)| *key);
        let ours = name.starts_with("AZURE_").then(|| name.to_ascii_lowercase().parse().ok()).flatten();
        match other.or(ours) {
            Some(Key::UseEmulator) if value == "true" => builder = emulator(builder, variables),
            Some(Key::UseEmulator) | None => {}
            Some(key) => builder = builder.with_config(key, value),
        }
    }
    let endpoint = builder.get_config_value(&Key::Endpoint);
    // Who writes http:// wants it, as for the emulator.
    if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")) {
        builder = builder.with_allow_http(true);
    }
    // `container@account` in the URL names an account too.
    if builder.get_config_value(&Key::AccountName).is_none() && !url.contains('@') {
        return Err(refuse(
            url,
            "no account: set AZURE_STORAGE_ACCOUNT_NAME, or AZURE_STORAGE_CONNECTION_STRING, or write \
             abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX",
        ));
    }
    if !has_credentials(&builder) && !machine_answers(&builder) {
        return Err(refuse(
            url,
            "no credentials: set AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or \
             AZURE_STORAGE_CONNECTION_STRING, or AZURE_USE_AZURE_CLI=true after `az login`; the metadata service of \
             this machine does not answer",
        ));
    }
    let options = retry(url, variables)?;
    let built =
        builder.with_url(url).with_retry(requests(&options)).build().map_err(|error| bad(url, &error))?;
    Ok(Arc::new(Object::bucket(Arc::new(built), url, prefix(url), &WORDS, options)))
}

fn has_credentials(builder: &MicrosoftAzureBuilder) -> bool {
    let has = |key| builder.get_config_value(&key).is_some();
    let wants = |key| builder.get_config_value(&key).is_some_and(|value| value == "true");
    let tenant = has(Key::ClientId) && (has(Key::ClientSecret) || has(Key::FederatedTokenFile));
    let given = has(Key::AccessKey) || has(Key::SasKey) || has(Key::Token) || has(Key::FabricSessionToken);
    given || tenant || wants(Key::UseAzureCli) || wants(Key::SkipSignature) || has(Key::CredentialType)
}

fn machine_answers(builder: &MicrosoftAzureBuilder) -> bool {
    let named = builder.get_config_value(&Key::MsiEndpoint);
    metadata::answers(named.as_deref().unwrap_or(metadata::USUAL))
}

/// Azurite, where `AZURITE_BLOB_STORAGE_URL` says or where it listens by itself.
fn emulator(builder: MicrosoftAzureBuilder, variables: &Variables) -> MicrosoftAzureBuilder {
    let (account, key) = EMULATOR;
    let at = variables.get("AZURITE_BLOB_STORAGE_URL").unwrap_or("http://127.0.0.1:10000");
    let endpoint = format!("{}/{account}", at.trim_end_matches('/'));
    builder.with_account(account).with_access_key(key).with_endpoint(endpoint)
}

/// What a connection string says; words about a bad one never show its secrets.
fn connection(
    builder: MicrosoftAzureBuilder,
    url: &str,
    text: &str,
    variables: &Variables,
) -> Result<MicrosoftAzureBuilder> {
    let wrong = |what: String| refuse(url, format!("{CONNECTION} {what}; copy it anew from the portal"));
    let (endpoint, name, key, signature) = match azure_connection(text).map_err(wrong)? {
        AzureConnection::Emulator => return Ok(emulator(builder, variables)),
        AzureConnection::Account { endpoint, name, key, signature } => (endpoint, name, key, signature),
    };
    let mut builder = builder.with_endpoint(endpoint);
    for (key, value) in [(Key::AccountName, name), (Key::AccessKey, key), (Key::SasKey, signature)] {
        if let Some(value) = value {
            builder = builder.with_config(key, value);
        }
    }
    Ok(builder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<[Option<String>; 4]> {
        let variables = Variables::default();
        let builder = connection(MicrosoftAzureBuilder::new(), "az://c", text, &variables)?;
        Ok([Key::AccountName, Key::AccessKey, Key::SasKey, Key::Endpoint]
            .map(|key| builder.get_config_value(&key)))
    }

    #[test]
    fn connection_strings_say_account_key_and_place() {
        let some = |text: &str| Some(text.to_string());
        let portal =
            "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=k==;EndpointSuffix=core.windows.net";
        let there = some("https://a.blob.core.windows.net");
        assert_eq!(read(portal).unwrap(), [some("a"), some("k=="), None, there]);
        let signed = "BlobEndpoint=https://b.blob.core.windows.net/;SharedAccessSignature=sv=1&sig=x%3D";
        let there = some("https://b.blob.core.windows.net");
        assert_eq!(read(signed).unwrap(), [some("b"), None, some("sv=1&sig=x%3D"), there]);
        let [account, _, _, endpoint] = read("UseDevelopmentStorage=true").unwrap();
        assert_eq!(
            (account, endpoint),
            (some("devstoreaccount1"), some("http://127.0.0.1:10000/devstoreaccount1"))
        );
        for bad in ["AccountKey=secret", "secret", "AccountName=a;secret"] {
            let message = read(bad).unwrap_err().to_string();
            assert!(message.contains(CONNECTION) && !message.contains("secret"), "{message}");
        }
    }
}
