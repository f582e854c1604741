//! `s3://bucket/prefix`: Amazon, and every server that speaks its protocol.

use super::common::{bad, prefix, requests, retry};
use super::profile::Profile;
use super::{Arc, Result, Store, Variables, metadata, refuse};
use crate::object::{Object, Words};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as Key};

const WORDS: Words = Words {
    place: "bucket",
    credentials: "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the profile of AWS_PROFILE",
    endpoint: "AWS_ENDPOINT_URL",
    region: "AWS_REGION",
};

/// Opens a bucket with the credentials of the variables, else of the profile, else of the machine it runs on.
pub(crate) fn open(url: &str, variables: &Variables) -> Result<Arc<dyn Store>> {
    let profile = Profile::read(url, variables)?;
    let builder = with_profile(from_variables(variables), &profile);
    let endpoint = builder.get_config_value(&Key::S3Endpoint).or(builder.get_config_value(&Key::Endpoint));
    // Who writes http:// wants it, as for a server on the same machine.
    let plain = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
    let builder = if plain { builder.with_allow_http(true) } else { builder };
    if !has_credentials(&builder) {
        check_machine(url, variables, &profile)?;
    }
    let has = |key| builder.get_config_value(&key).is_some();
    if has(Key::AccessKeyId) != has(Key::SecretAccessKey) {
        return Err(refuse(
            url,
            "of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY one is missing: set both, or neither",
        ));
    }
    let options = retry(url, variables)?;
    let built =
        builder.with_url(url).with_retry(requests(&options)).build().map_err(|error| bad(url, &error))?;
    Ok(Arc::new(Object::bucket(Arc::new(built), url, prefix(url), &WORDS, options)))
}

fn from_variables(variables: &Variables) -> AmazonS3Builder {
    let known = variables.0.iter().filter(|(name, value)| name.starts_with("AWS_") && !value.is_empty());
    known.fold(AmazonS3Builder::new(), |builder, (name, value)| match name.to_ascii_lowercase().parse() {
        Ok(key) => builder.with_config(key, value),
        Err(_) => builder,
    })
}

/// Adds what the variables do not say. Keys belong together: those of the profile are not mixed with others.
fn with_profile(mut builder: AmazonS3Builder, profile: &Profile) -> AmazonS3Builder {
    let mut places = vec![(Key::Region, "region")];
    if builder.get_config_value(&Key::S3Endpoint).is_none() {
        places.push((Key::Endpoint, "endpoint_url"));
    }
    if !has_credentials(&builder) {
        places.push((Key::AccessKeyId, "aws_access_key_id"));
        places.push((Key::SecretAccessKey, "aws_secret_access_key"));
        places.push((Key::Token, "aws_session_token"));
    }
    for (key, name) in places {
        if let (None, Some(value)) = (builder.get_config_value(&key), profile.get(name)) {
            builder = builder.with_config(key, value);
        }
    }
    builder
}

/// Whether something but the machine's own metadata service gives credentials, or none are wanted.
fn has_credentials(builder: &AmazonS3Builder) -> bool {
    let has = |key| builder.get_config_value(&key).is_some();
    let unsigned = builder.get_config_value(&Key::SkipSignature).is_some_and(|value| value == "true");
    let container = has(Key::ContainerCredentialsRelativeUri) || has(Key::ContainerCredentialsFullUri);
    has(Key::AccessKeyId)
        || has(Key::SecretAccessKey)
        || has(Key::WebIdentityTokenFile)
        || container
        || unsigned
}

/// Says that there are no credentials where the machine has none to give either.
fn check_machine(url: &str, variables: &Variables, profile: &Profile) -> Result<()> {
    if let Some(reason) = profile.elsewhere() {
        return Err(refuse(url, reason));
    }
    let disabled =
        variables.get("AWS_EC2_METADATA_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true"));
    let address = variables.get("AWS_METADATA_ENDPOINT").unwrap_or(metadata::USUAL);
    if !disabled && metadata::answers(address) {
        return Ok(());
    }
    Err(refuse(
        url,
        "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write a profile to ~/.aws/credentials \
         (`aws configure`) and name it in AWS_PROFILE; the metadata service of this machine does not answer",
    ))
}
