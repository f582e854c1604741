//! The files that `aws configure` writes: `~/.aws/credentials` and `~/.aws/config`.

use super::texts::aws_section;
use super::{Result, Variables, refuse};
use std::collections::BTreeMap;

/// What a profile says; a value that both files have is that of the credentials.
pub(super) struct Profile {
    /// Its name.
    name: String,
    /// Keys and values.
    values: BTreeMap<String, String>,
}

/// Keys of ways to get credentials that need another program or another service.
const ELSEWHERE: [&str; 5] =
    ["sso_session", "sso_start_url", "credential_process", "source_profile", "credential_source"];

impl Profile {
    /// The profile that the variables name, `default` without; a named one must exist.
    pub(super) fn read(url: &str, variables: &Variables) -> Result<Profile> {
        let named = variables.get("AWS_PROFILE").or_else(|| variables.get("AWS_DEFAULT_PROFILE"));
        let name = named.unwrap_or("default");
        let file = |variable: &str, usual: &str| {
            let home = || variables.get("HOME").map(|home| format!("{home}/.aws/{usual}"));
            variables.get(variable).map(str::to_string).or_else(home)
        };
        let files = [
            file("AWS_CONFIG_FILE", "config").map(|path| (path, section(name))),
            file("AWS_SHARED_CREDENTIALS_FILE", "credentials").map(|path| (path, name.to_string())),
        ];
        let mut values = BTreeMap::new();
        let mut found = false;
        let mut looked = Vec::new();
        for (path, section) in files.into_iter().flatten() {
            match std::fs::read_to_string(&path) {
                Ok(text) => {
                    let of_section = aws_section(&text, &section);
                    found |= of_section.is_some();
                    values.extend(of_section.into_iter().flatten());
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(refuse(url, format!("'{path}' cannot be read: {error}"))),
            }
            looked.push(format!("[{section}] in '{path}'"));
        }
        if named.is_some() && !found {
            let looked = looked.join(" or ");
            return Err(refuse(
                url,
                format!("the profile '{name}' does not exist: write {looked}, or unset AWS_PROFILE"),
            ));
        }
        Ok(Profile { name: name.to_string(), values })
    }

    /// A value, such as that of `region`.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Says what to do about credentials that only the tools of AWS can get.
    pub(super) fn elsewhere(&self) -> Option<String> {
        let key = ELSEWHERE.into_iter().find(|key| self.get(key).is_some())?;
        let name = &self.name;
        Some(format!(
            "the profile '{name}' gets credentials by '{key}', which is not read here: \
             run `eval \"$(aws configure export-credentials --profile {name} --format env)\"`"
        ))
    }
}

/// The name of a profile's section in the configuration.
fn section(name: &str) -> String {
    if name == "default" { name.to_string() } else { format!("profile {name}") }
}
