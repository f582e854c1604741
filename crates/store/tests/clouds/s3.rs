//! S3, from moto's server.

use crate::checks::{self, says};
use crate::server::{self, Server, free_port, request};
use crate::{Cloud, PATIENCE, faults};
use planaria_store::{Error, PutMode, StoreExt, Variables, open_with};
use std::process::Command;
use std::sync::{Arc, Mutex, Weak};

static SERVER: Mutex<Weak<Server>> = Mutex::new(Weak::new());

fn start(variables: &[(&str, &str)], is_ready: impl Fn(u16) -> bool) -> Option<Server> {
    let port = free_port();
    let program = std::env::var("PLANARIA_MOTO").unwrap_or_else(|_| "moto_server".to_string());
    let mut command = Command::new(program);
    command.args(["-H", "127.0.0.1", "-p", &port.to_string()]).envs(variables.iter().copied());
    let started = server::start(&mut command, port, is_ready);
    if started.is_none() {
        eprintln!("skipped: no moto_server; install it or set PLANARIA_MOTO");
    }
    started
}

fn cloud() -> Option<Cloud> {
    let made = |port| request(port, "PUT", "/bucket").is_some_and(|answer| answer.contains(" 200 "));
    let server = server::shared(&SERVER, || start(&[], made))?;
    Some(of(server))
}

fn of(server: Arc<Server>) -> Cloud {
    let endpoint = format!("http://127.0.0.1:{}", server.port);
    let variables = [
        ("AWS_ENDPOINT_URL", endpoint.as_str()),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "the-secret"),
        ("PLANARIA_STORE_RETRY", PATIENCE),
    ];
    let variables = variables.map(|(name, value)| (name.to_string(), value.to_string())).to_vec();
    Cloud { url: "s3://bucket", variables, port: server.port, _server: server }
}

#[test]
fn conforms() {
    let Some(cloud) = cloud() else { return };
    checks::conforms(&cloud);
    let left = request(cloud.port, "GET", "/bucket?uploads&prefix=large").unwrap();
    assert!(left.contains(" 200 ") && !left.contains("<UploadId>"), "an upload given up is ended: {left}");
}

#[test]
fn listings_are_whole() {
    let Some(cloud) = cloud() else { return };
    // A page has 1,000.
    checks::listings_are_whole(&cloud, 2_100);
}

#[test]
fn faults_are_survived() {
    let Some(cloud) = cloud() else { return };
    faults::are_survived(&cloud);
}

#[test]
fn credentials_come_from_the_usual_places() {
    let Some(cloud) = cloud() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    let keys = "[other]\naws_access_key_id=no\n[run]\naws_access_key_id = test\naws_secret_access_key = the-secret\n";
    let keys = file("credentials", keys);
    let config = format!(
        "[profile run]\nregion = us-east-1\nendpoint_url = http://127.0.0.1:{}\n[profile sso]\nsso_session = x\n",
        cloud.port
    );
    let config = file("config", &config);
    let files = [("AWS_SHARED_CREDENTIALS_FILE", keys.as_str()), ("AWS_CONFIG_FILE", config.as_str())];
    let opened = |profile: &str, more: &[(&str, &str)]| {
        let variables: Variables =
            files.iter().chain(more).copied().chain([("AWS_PROFILE", profile)]).collect();
        open_with("s3://bucket/profile", &variables)
    };
    let store = opened("run", &[]).unwrap();
    store.put("x", b"by profile", PutMode::Replace).unwrap();
    assert_eq!(cloud.open("profile").read("x", 100).unwrap(), b"by profile");
    says(opened("absent", &[]), &["the profile 'absent' does not exist", &config], "the-secret");
    says(opened("sso", &[]), &["sso_session", "aws configure export-credentials"], "the-secret");
    // A machine that is not of a cloud has a metadata service that refuses, or one that never answers.
    let refusing = format!("http://127.0.0.1:{}", free_port());
    for at in [refusing.as_str(), "http://192.0.2.1"] {
        let told = opened("", &[("AWS_METADATA_ENDPOINT", at)]);
        says(told, &["s3://bucket/profile", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"], "the-secret");
    }
    says(opened("", &[("AWS_EC2_METADATA_DISABLED", "true")]), &["AWS_PROFILE"], "the-secret");
    let half = cloud.with(&[("AWS_SECRET_ACCESS_KEY", "")]).try_open("x");
    says(half, &["AWS_SECRET_ACCESS_KEY one is missing", "set both"], "the-secret");
}

#[test]
fn mistakes_are_told() {
    let Some(cloud) = cloud() else { return };
    let mut elsewhere = cloud.with(&[]);
    elsewhere.url = "s3://no-such-bucket".to_string();
    let store = elsewhere.open_at("x");
    let told = ["the bucket of 's3://no-such-bucket/x' does not exist", "correct the URL"];
    says(store.list(""), &told, "the-secret");
    says(store.put("y", b"z", PutMode::Create), &told, "the-secret");
    let nobody = format!("http://127.0.0.1:{}", free_port());
    let store = cloud.with(&[("AWS_ENDPOINT_URL", &nobody), ("PLANARIA_STORE_RETRY", "1")]).open_at("x");
    let error = store.read("y", 10).unwrap_err();
    assert!(matches!(error, Error::GaveUp { tries, .. } if tries > 1), "{error}");
    says(Err::<(), _>(error), &[&nobody, "check AWS_ENDPOINT_URL"], "the-secret");
    let told = cloud.with(&[("PLANARIA_STORE_RETRY", "soon")]).try_open("x");
    says(told, &["PLANARIA_STORE_RETRY is 'soon'", "a number of seconds"], "the-secret");
    // This one looks at keys.
    let listens = |port| request(port, "GET", "/moto-api/data.json").is_some();
    let Some(server) = start(&[("INITIAL_NO_AUTH_ACTION_COUNT", "0")], listens) else { return };
    let cloud = of(Arc::new(server));
    let store = cloud.open("x");
    says(store.list(""), &["InvalidAccessKeyId", "check AWS_ACCESS_KEY_ID"], "the-secret");
    says(
        store.put("y", b"z", PutMode::Replace),
        &["cannot put 'y'", "check AWS_ACCESS_KEY_ID"],
        "the-secret",
    );
}
