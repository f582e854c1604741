//! What users write down about their buckets: the files of `aws configure`, and connection strings of Azure. Read in every build,
//! so that tests reach them without the clients of the clouds.

use std::collections::BTreeMap;

/// Keys and values of a section of `~/.aws/credentials` or `~/.aws/config`; none where there is no such section. Indented lines
/// belong to the key above them.
pub fn aws_section(text: &str, wanted: &str) -> Option<BTreeMap<String, String>> {
    let mut values = None;
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with([' ', '\t', '#', ';']) {
            continue;
        }
        if let Some(name) = line.trim().strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let mut words = name.split_whitespace();
            inside = wanted.split(' ').all(|word| words.next() == Some(word)) && words.next().is_none();
            if inside {
                values.get_or_insert_with(BTreeMap::new);
            }
        } else if let (true, Some((key, value))) = (inside, line.split_once('=')) {
            let values = values.get_or_insert_with(BTreeMap::new);
            values.insert(key.trim().to_ascii_lowercase(), value.trim().to_string());
        }
    }
    values
}

/// What a connection string of Azure names.
#[derive(Clone, PartialEq, Eq)]
pub enum AzureConnection {
    /// The emulator of this machine.
    Emulator,
    /// An account.
    Account {
        /// Its address.
        endpoint: String,
        /// Its name.
        name: Option<String>,
        /// Its key.
        key: Option<String>,
        /// A signature that stands for a key.
        signature: Option<String>,
    },
}

/// Keys and signatures are secrets.
impl std::fmt::Debug for AzureConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AzureConnection::Emulator => f.write_str("Emulator"),
            AzureConnection::Account { endpoint, .. } => f.debug_tuple("Account").field(endpoint).finish(),
        }
    }
}

/// Reads a connection string.
///
/// # Errors
/// What is wrong with it, in words that do not show its secrets: they follow the name of where it was found.
pub fn azure_connection(text: &str) -> Result<AzureConnection, String> {
    let mut fields = BTreeMap::new();
    for (number, part) in text.split(';').map(str::trim).enumerate().filter(|(_, part)| !part.is_empty()) {
        let Some((name, value)) = part.split_once('=') else {
            return Err(format!("has a field, number {}, that is not NAME=VALUE", number + 1));
        };
        fields.insert(name.trim().to_ascii_lowercase(), value.trim());
    }
    let get = |name: &str| fields.get(name).copied().filter(|value| !value.is_empty());
    if get("usedevelopmentstorage").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(AzureConnection::Emulator);
    }
    let endpoint = match (get("blobendpoint"), get("accountname")) {
        (Some(endpoint), _) => endpoint.trim_end_matches('/').to_string(),
        (None, Some(account)) => {
            let protocol = get("defaultendpointsprotocol").unwrap_or("https");
            format!("{protocol}://{account}.blob.{}", get("endpointsuffix").unwrap_or("core.windows.net"))
        }
        (None, None) => return Err("has neither AccountName nor BlobEndpoint".into()),
    };
    // Strings with a signature name the account in the endpoint only.
    let name = get("accountname").map(str::to_string).or_else(|| account_of(&endpoint));
    let [key, signature] = ["accountkey", "sharedaccesssignature"].map(|name| get(name).map(str::to_string));
    Ok(AzureConnection::Account { endpoint, name, key, signature })
}

/// `a` of `https://a.blob.core.windows.net` and of `http://127.0.0.1:10000/a`.
fn account_of(endpoint: &str) -> Option<String> {
    let rest = endpoint.split_once("://")?.1;
    let name = match rest.split_once('/') {
        Some((_, path)) => path.split('/').next()?,
        None => rest.split_once('.')?.0,
    };
    (!name.is_empty()).then(|| name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_told_apart() {
        let text = "# keys\n[default]\naws_access_key_id = A\n\n[ profile b ]\nregion=eu-west-1\ns3 =\n  x = 1\n[b]\nregion = no\n";
        let get = |section: &str, key: &str| aws_section(text, section)?.get(key).cloned();
        assert_eq!(get("default", "aws_access_key_id").as_deref(), Some("A"));
        assert_eq!(get("profile b", "region").as_deref(), Some("eu-west-1"));
        assert_eq!((get("profile b", "x"), get("b", "region").as_deref()), (None, Some("no")));
        assert!(aws_section(text, "profile").is_none() && aws_section(text, "profile b c").is_none());
    }

    #[test]
    fn connection_strings_say_account_key_and_place() {
        let some = |text: &str| Some(text.to_string());
        let account = |endpoint: &str, name, key, signature| AzureConnection::Account {
            endpoint: endpoint.to_string(),
            name,
            key,
            signature,
        };
        let portal =
            "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=k==;EndpointSuffix=core.windows.net";
        let found = azure_connection(portal).unwrap();
        assert_eq!(found, account("https://a.blob.core.windows.net", some("a"), some("k=="), None));
        let signed = "BlobEndpoint=https://b.blob.core.windows.net/;SharedAccessSignature=sv=1&sig=x%3D";
        let found = azure_connection(signed).unwrap();
        assert_eq!(found, account("https://b.blob.core.windows.net", some("b"), None, some("sv=1&sig=x%3D")));
        assert!(!format!("{found:?}").contains("sig"));
        assert_eq!(azure_connection("UseDevelopmentStorage=true").unwrap(), AzureConnection::Emulator);
        for bad in ["AccountKey=secret", "secret", "AccountName=a;secret"] {
            let message = azure_connection(bad).unwrap_err();
            assert!(!message.contains("secret"), "{message}");
        }
    }
}
