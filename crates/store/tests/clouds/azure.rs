//! Azure, from its emulator Azurite.

use crate::checks::{self, says};
use crate::server::{self, Server, free_port, request};
use crate::{Cloud, PATIENCE, faults};
use planaria_store::{PutMode, StoreExt, Variables, open_with};
use std::process::Command;
use std::sync::{Mutex, Weak};

static SERVER: Mutex<Weak<Server>> = Mutex::new(Weak::new());

/// The emulator's, as Microsoft publishes it.
const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A signature for the whole account, by the program that runs the server.
const SIGN: &str = "
const [account, key] = process.argv.slice(1);
const fields = { sv: '2018-11-09', ss: 'b', srt: 'sco', sp: 'rwdlac', se: '2099-01-01T00:00:00Z', spr: 'https,http' };
const text = [account, fields.sp, fields.ss, fields.srt, '', fields.se, '', fields.spr, fields.sv, ''].join('\\n');
fields.sig = require('crypto').createHmac('sha256', Buffer.from(key, 'base64')).update(text).digest('base64');
console.log(new URLSearchParams(fields).toString());
";

fn signature() -> Option<String> {
    let out = Command::new("node").args(["-e", SIGN, "devstoreaccount1", KEY]).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_string())
}

fn cloud() -> Option<Cloud> {
    let Some(signature) = signature() else {
        eprintln!("skipped: no node");
        return None;
    };
    let server = server::shared(&SERVER, || {
        let port = free_port();
        let program = std::env::var("PLANARIA_AZURITE").unwrap_or_else(|_| "azurite-blob".to_string());
        let mut command = Command::new(program);
        command.args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string(), "--inMemoryPersistence"]);
        command.args(["--silent", "--skipApiVersionCheck", "--disableTelemetry"]);
        let path = format!("/devstoreaccount1/container?restype=container&{signature}");
        let made = |port| request(port, "PUT", &path).is_some_and(|answer| answer.contains(" 201 "));
        server::start(&mut command, port, made)
    });
    let Some(server) = server else {
        eprintln!("skipped: no azurite-blob; install it with npm or set PLANARIA_AZURITE");
        return None;
    };
    let endpoint = format!("http://127.0.0.1:{}/devstoreaccount1", server.port);
    let text = format!("AccountName=devstoreaccount1;AccountKey={KEY};BlobEndpoint={endpoint};");
    let patience = ("PLANARIA_STORE_RETRY".to_string(), PATIENCE.to_string());
    let variables = vec![("AZURE_STORAGE_CONNECTION_STRING".to_string(), text), patience];
    Some(Cloud { url: "az://container", variables, port: server.port, _server: server })
}

#[test]
fn conforms() {
    let Some(cloud) = cloud() else { return };
    checks::conforms(&cloud);
}

#[test]
fn listings_are_whole() {
    let Some(cloud) = cloud() else { return };
    // A page has 5,000.
    checks::listings_are_whole(&cloud, 5_050);
}

#[test]
fn faults_are_survived() {
    let Some(cloud) = cloud() else { return };
    faults::are_survived(&cloud);
}

#[test]
fn credentials_come_from_the_usual_places() {
    let Some(cloud) = cloud() else { return };
    let server = format!("http://127.0.0.1:{}", cloud.port);
    let (endpoint, signature) = (format!("{server}/devstoreaccount1"), signature().unwrap());
    let signed = format!("BlobEndpoint={endpoint};SharedAccessSignature={signature}");
    let account = ("AZURE_STORAGE_ACCOUNT_NAME", "devstoreaccount1");
    let places: [&[(&str, &str)]; 5] = [
        &[account, ("AZURE_STORAGE_ACCOUNT_KEY", KEY), ("AZURE_STORAGE_ENDPOINT", &endpoint)],
        &[
            ("AZURE_STORAGE_ACCOUNT", account.1),
            ("AZURE_STORAGE_KEY", KEY),
            ("AZURE_STORAGE_ENDPOINT", &endpoint),
        ],
        &[account, ("AZURE_STORAGE_SAS_TOKEN", &signature), ("AZURE_STORAGE_ENDPOINT", &endpoint)],
        &[("AZURE_STORAGE_CONNECTION_STRING", &signed)],
        &[("AZURE_STORAGE_USE_EMULATOR", "true"), ("AZURITE_BLOB_STORAGE_URL", &server)],
    ];
    for (number, place) in places.iter().enumerate() {
        let variables: Variables = place.iter().copied().collect();
        let store = open_with(&format!("az://container/credentials/{number}"), &variables).unwrap();
        store.put("x", b"signed", PutMode::Create).unwrap_or_else(|error| panic!("{place:?}: {error}"));
        assert_eq!(store.read("x", 100).unwrap(), b"signed");
        assert_eq!(store.file_names("").unwrap(), ["x"]);
    }
    let none = format!("http://127.0.0.1:{}", free_port());
    let variables: Variables = [account, ("AZURE_MSI_ENDPOINT", none.as_str())].into_iter().collect();
    says(open_with("az://container/x", &variables), &["no credentials: set AZURE_STORAGE_ACCOUNT_KEY"], KEY);
    let nothing = Variables::default();
    says(open_with("az://container/x", &nothing), &["no account: set AZURE_STORAGE_ACCOUNT_NAME"], KEY);
}

#[test]
fn mistakes_are_told() {
    let Some(cloud) = cloud() else { return };
    let mut elsewhere = cloud.with(&[]);
    elsewhere.url = "az://no-such-container".to_string();
    let store = elsewhere.open_at("x");
    let told = ["the container of 'az://no-such-container/x' does not exist", "correct the URL"];
    says(store.list(""), &told, KEY);
    says(store.put("y", b"z", PutMode::Create), &told, KEY);
    let endpoint = format!("http://127.0.0.1:{}/devstoreaccount1", cloud.port);
    let wrong = "d3Jvbmcga2V5";
    let text = format!("AccountName=devstoreaccount1;AccountKey={wrong};BlobEndpoint={endpoint}");
    let store = cloud.with(&[("AZURE_STORAGE_CONNECTION_STRING", &text)]).open_at("x");
    says(store.list(""), &["AuthorizationFailure", "check AZURE_STORAGE_ACCOUNT_KEY"], wrong);
    says(store.reader("y").map(|_| ()), &["access was refused", "check AZURE_STORAGE_ACCOUNT_KEY"], wrong);
    let signed = format!("BlobEndpoint={endpoint};SharedAccessSignature=sv=2018-11-09&sig={wrong}");
    let store = cloud.with(&[("AZURE_STORAGE_CONNECTION_STRING", &signed)]).open_at("x");
    says(store.list(""), &["access was refused", "AZURE_STORAGE_SAS_TOKEN"], wrong);
    let nobody = format!("AccountName=a;AccountKey={KEY};BlobEndpoint=http://127.0.0.1:{}/a", free_port());
    let changes = [("AZURE_STORAGE_CONNECTION_STRING", nobody.as_str()), ("PLANARIA_STORE_RETRY", "1")];
    says(cloud.with(&changes).open_at("x").read("y", 10), &["gave up", "check AZURE_STORAGE_ENDPOINT"], KEY);
}
