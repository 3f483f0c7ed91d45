//! The owner by itself: a runtime that has nothing, a store, and a pod that brings nothing by itself.

use alloc::{rc::Rc, sync::Arc};
use core::{
    cell::RefCell,
    sync::atomic::{AtomicU64, Ordering},
};
use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use serde_json::json;
use smol::future::{block_on, poll_once};

use super::{
    AgentImages, ImageCommands, ImageDropInWatcher, ImageFuture, ImageGarbageCollector, ImageStock,
    ImageTools, NodeKeyring, PodPullSecrets, PodVolumeImages, PullKeyring, StartingPod,
    access::ImageAccess,
    credentials::{PullAttempt, PullCredentials},
    records::record_file_name,
};
use crate::{
    agent::{
        clock::{Clock, SystemClock},
        complaints::Complaints,
        link_budget::LinkBudget,
        link_policy::PullBudget,
        recorder::EventSeverity,
        tests::world::{Hands, TestClock},
    },
    api::{
        Container, MonoTime, Pod, PodError, Secret,
        cri::{AuthConfig, SandboxConfig},
    },
    config,
    image::{
        ImageReference,
        pull::{
            CredentialProviders, FetchGate as _, NodeCredentialLookup, PluginAccount, PullSettings,
            TokenAttributes,
        },
        testing::{Stream, docker_archive},
    },
    logic::{
        image_access::{PullSecret, VerificationPolicy},
        image_gc::PERIOD,
        link_budget,
    },
    runtime::{
        ImageService, RuntimeError, RuntimeService,
        fake::{Fake, Fault, Op, Trouble},
        runc::store_images::StoreImages,
    },
    sys::lane::Lane,
    testing::TestDir,
};

const PRIVATE: &str = "registry.test/app:1";

/// A node that has nothing.
impl NodeKeyring for () {
    fn lookup_credentials<'a>(&'a self, _: &'a str, _: bool) -> ImageFuture<'a, Vec<AuthConfig>> {
        Box::pin(async { Vec::new() })
    }
}

/// A node with these.
impl NodeKeyring for Vec<AuthConfig> {
    fn lookup_credentials<'a>(&'a self, _: &'a str, _: bool) -> ImageFuture<'a, Vec<AuthConfig>> {
        Box::pin(async { self.clone() })
    }
}

/// A pod without Secrets, and its events: of whom, how bad, reason and message.
struct Plain(Pod, RefCell<Vec<Told>>);

type Told = (Option<String>, EventSeverity, String, String);

impl StartingPod for Plain {
    fn pod(&self) -> &Pod {
        &self.0
    }

    fn record_event(
        &self,
        container: Option<&str>,
        severity: EventSeverity,
        reason: &str,
        message: &str,
    ) {
        let whose = container.map(str::to_owned);
        let told = (whose, severity, reason.to_owned(), message.to_owned());
        self.1.borrow_mut().push(told);
    }

    fn sandbox_config(&self) -> Option<SandboxConfig> {
        None
    }

    fn pull_secrets(&self) -> ImageFuture<'_, PodPullSecrets> {
        Box::pin(async { PodPullSecrets::default() })
    }

    fn wait_cancelled(&self) -> ImageFuture<'_, ()> {
        Box::pin(core::future::pending())
    }
}

/// A pod with the service account of this UID, or without one.
struct WithAccount(Plain, Option<&'static str>);

impl StartingPod for WithAccount {
    fn pod(&self) -> &Pod {
        self.0.pod()
    }

    fn record_event(
        &self,
        container: Option<&str>,
        severity: EventSeverity,
        reason: &str,
        message: &str,
    ) {
        self.0.record_event(container, severity, reason, message);
    }

    fn sandbox_config(&self) -> Option<SandboxConfig> {
        None
    }

    fn pull_secrets(&self) -> ImageFuture<'_, PodPullSecrets> {
        self.0.pull_secrets()
    }

    fn has_account(&self) -> bool {
        self.1.is_some()
    }

    fn plugin_account<'a>(
        &'a self,
        _: &'a TokenAttributes,
    ) -> ImageFuture<'a, Result<Option<PluginAccount>, PodError>> {
        let account = self.1.map(|uid| PluginAccount {
            namespace: "ns".into(),
            name: "robot".into(),
            uid: uid.into(),
            ..PluginAccount::default()
        });
        Box::pin(core::future::ready(Ok(account)))
    }

    fn account_token<'a>(&'a self, audience: &'a str) -> ImageFuture<'a, Result<String, PodError>> {
        Box::pin(core::future::ready(match self.1 {
            Some("refused") => Err(PodError::Object(format!("no token for {audience}"))),
            uid => Ok(uid.unwrap_or_default().into()),
        }))
    }

    fn wait_cancelled(&self) -> ImageFuture<'_, ()> {
        self.0.wait_cancelled()
    }
}

#[test]
fn a_service_account_opens_an_image_to_its_pods_alone() {
    // ICV-07 ICV-08
    let scratch = TestDir::new("images");
    let plugin = scratch.join("plugin");
    // The password is another one at each call, as that of a token is.
    let answer = r#"{"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse",
        "cacheKeyType": "Image", "cacheDuration": "0", "auth": {"registry.test": {"username": "u", "password": "'$$'"}}}"#;
    let text = format!("#!/bin/sh\necho '{}'\n", answer.replace('\n', ""));
    let from = scratch.join("text");
    fs::write(&from, text).expect("scratch");
    let made = std::process::Command::new("install")
        .arg("-m755")
        .args([&from, &plugin])
        .status();
    assert!(made.expect("install").success());
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1",
        "kind": "CredentialProviderConfig",
        "providers": [{
            "name": "plugin",
            "matchImages": ["registry.test"],
            "defaultCacheDuration": "1h",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "tokenAttributes": {
                "serviceAccountTokenAudience": "registry.test",
                "cacheType": "ServiceAccount",
                "requireServiceAccount": true,
            },
        }],
    });
    let providers = CredentialProviders::parse(&config, scratch.0.clone()).expect("valid");
    let keyring = PullKeyring(NodeCredentialLookup::new(PullSettings {
        providers,
        ..PullSettings::default()
    }));
    let fake = Rc::new(Fake::new());
    fake.offer_private_image(PRIVATE, "u");
    let images = images_of(&scratch, &fake, Rc::new(keyring), None);
    let ensure = |account, policy: &str| {
        // Each is a pod of its own: none waits because of another one's failed pull.
        let mut own = plain();
        own.0.metadata.uid = format!("{account:?} {policy}").as_str().into();
        let pod = WithAccount(own, account);
        let container = Container {
            image: PRIVATE.into(),
            image_pull_policy: policy.into(),
            ..Container::default()
        };
        fake.take_calls();
        let is_there = matches!(block_on(images.ensure_image(&pod, &container)), Ok(Some(_)));
        let calls = fake.take_calls();
        let pulls = calls.iter().filter(|(op, _)| *op == Op::PullImage).count();
        let events = pod.0.1.borrow();
        let told = events
            .iter()
            .find(|told| told.2 == "FailedToRetrieveImagePullCredentials");
        (is_there, pulls, told.map(|told| told.3.clone()))
    };
    assert_eq!(ensure(None, "IfNotPresent"), (false, 1, None));
    assert_eq!(ensure(Some("1"), "IfNotPresent"), (true, 1, None));
    let record = || {
        let files = fs::read_dir(scratch.join("root/image_manager/pulled")).expect("records");
        let paths: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
        assert_eq!(paths.len(), 1);
        fs::read_to_string(&paths[0]).expect("record")
    };
    let noted = record();
    assert!(noted.contains("robot"), "{noted}");
    // Whatever its credential is by now; the record stays as it is.
    assert_eq!(ensure(Some("1"), "Never"), (true, 0, None));
    assert_eq!(record(), noted);
    // Another account asks the registry, and a pod without one is refused.
    assert_eq!(ensure(Some("2"), "Never"), (false, 0, None));
    assert_eq!(ensure(Some("2"), "IfNotPresent"), (true, 1, None));
    assert_eq!(ensure(None, "Never"), (false, 0, None));
    // The plugin is asked for a pull alone.
    assert_eq!(ensure(Some("refused"), "Never"), (false, 0, None));
    let told = "Credential plugin plugin gave no credentials for the service account: no token for registry.test";
    assert_eq!(
        ensure(Some("refused"), "IfNotPresent"),
        (false, 1, Some(told.into()))
    );
}

/// A pod with a Secret for [`PRIVATE`] that is deleted as soon as anything takes its time.
struct Deleted(Plain);

impl StartingPod for Deleted {
    fn pod(&self) -> &Pod {
        self.0.pod()
    }

    fn record_event(
        &self,
        container: Option<&str>,
        severity: EventSeverity,
        reason: &str,
        message: &str,
    ) {
        self.0.record_event(container, severity, reason, message);
    }

    fn sandbox_config(&self) -> Option<SandboxConfig> {
        None
    }

    fn pull_secrets(&self) -> ImageFuture<'_, PodPullSecrets> {
        let auths = json!({"auths": {"registry.test": {"username": "u", "password": "p"}}});
        let secret = json!({
            "metadata": {"name": "pull", "namespace": "ns", "uid": "s"},
            "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": auths.to_string()},
        });
        let secret: Secret = serde_json::from_value(secret).expect("a Secret");
        let secrets = PodPullSecrets::read(self.pod(), |_| Some(&secret));
        Box::pin(core::future::ready(secrets))
    }

    fn wait_cancelled(&self) -> ImageFuture<'_, ()> {
        Box::pin(core::future::ready(()))
    }
}

fn plain() -> Plain {
    let container = json!({"name": "c", "image": PRIVATE, "imagePullPolicy": "IfNotPresent"});
    let pod = json!({
        "metadata": {"name": "a", "namespace": "ns", "uid": "a"},
        "spec": {"containers": [container], "imagePullSecrets": [{"name": "pull"}]},
    });
    Plain(
        serde_json::from_value(pod).expect("a pod"),
        RefCell::default(),
    )
}

fn user(name: &str) -> AuthConfig {
    AuthConfig {
        username: name.into(),
        password: "p".into(),
        ..AuthConfig::default()
    }
}

/// The owner, with its records below `dir`.
fn images(dir: &TestDir, fake: &Rc<Fake>) -> Rc<AgentImages> {
    images_of(dir, fake, Rc::new(()), None)
}

/// Makes the owner with the node's keyring, and with `parallel` pulls at once.
fn images_of(
    dir: &TestDir,
    fake: &Rc<Fake>,
    keyring: Rc<dyn NodeKeyring>,
    parallel: Option<u32>,
) -> Rc<AgentImages> {
    images_by(
        dir,
        fake,
        keyring,
        parallel,
        Rc::new(SystemClock::new().expect("timer")),
    )
}

/// Makes the owner with another clock as well.
fn images_by(
    dir: &TestDir,
    fake: &Rc<Fake>,
    keyring: Rc<dyn NodeKeyring>,
    parallel: Option<u32>,
    clock: Rc<dyn Clock>,
) -> Rc<AgentImages> {
    let flags = config::flags::parse_flags(Vec::new(), &dir.join("")).expect("flags");
    let host = config::HostIdentity {
        hostname: "node".into(),
    };
    let mut loaded = config::load_config(flags, &host).expect("configuration");
    loaded.config.images.parallel_pulls = parallel;
    let tools = ImageTools {
        service: Rc::clone(fake) as Rc<dyn ImageService>,
        keyring,
        complaints: Rc::new(Complaints::new(Rc::clone(&clock))),
        clock,
        disk: Lane::without_thread(),
        unused_images: None,
        budget: None,
    };
    Rc::new(AgentImages::new(
        &loaded.config.images,
        8,
        &dir.join("root"),
        tools,
    ))
}

/// An image store in the scratch directory.
fn own_store(scratch: &TestDir) -> StoreImages {
    let (path, lane) = (scratch.join("store"), Lane::without_thread());
    block_on(StoreImages::open(
        path,
        PullSettings::default(),
        lane.clone(),
        lane,
    ))
    .expect("store")
}

#[test]
fn what_the_operator_imports_is_everybodys() {
    // IMG-20
    let (scratch, fake) = (TestDir::new("images"), Rc::new(Fake::new()));
    let images = images(&scratch, &fake);
    let commands = ImageCommands {
        images: Rc::clone(&images),
        stock: ImageStock::Own(own_store(&scratch)),
        runtime: fake as Rc<dyn RuntimeService>,
    };
    let archive = scratch.join("archive.tar");
    let layer = Stream::new().file("name", b"x").bytes();
    fs::write(&archive, docker_archive("app:1", &[&layer])).expect("archive");
    let import = || {
        let imported = commands.import_archive(archive.clone(), String::new(), None);
        block_on(imported).expect("imported");
        commands
            .stock
            .own_store("list")
            .expect("a store")
            .image_records()[0]
            .id
            .clone()
    };
    let id = import();
    let pod = plain();
    let may_use = |reference: &str| block_on(images.access.may_use(&(), &pod, reference, &id));
    // A pod with a Secret has the same bytes from a registry.
    let credentials = PullCredentials {
        own: Vec::new(),
        brought: vec![PullSecret {
            name: "pull".into(),
            digest: "1".into(),
            ..PullSecret::default()
        }],
    };
    let pull = || {
        let noted = images
            .access
            .note_pulled_image(PRIVATE, &id, &credentials, Some("1"));
        block_on(noted);
    };
    pull();
    assert!(may_use("docker.io/library/app:1"), "imported before");
    // The runtime of this test does not have it.
    block_on(images.tidy_access_records());
    pull();
    assert!(!may_use(PRIVATE), "only pulled, it is bound");
    import();
    for reference in [PRIVATE, "docker.io/library/app:1"] {
        assert!(may_use(reference), "{reference}");
    }
}

#[test]
fn records_of_pulls_are_private_and_hold_no_credential() {
    // ICV-03 ICV-04
    let (scratch, fake) = (TestDir::new("images"), Rc::new(Fake::new()));
    let images = images(&scratch, &fake);
    let id = fake.add_image(PRIVATE);
    let credentials = PullCredentials {
        own: Vec::new(),
        brought: vec![PullSecret {
            uid: "u".into(),
            namespace: "ns".into(),
            name: "pull".into(),
            digest: "1".into(),
        }],
    };
    let begin = images.access.begin_pull(&*fake, PRIVATE, &credentials);
    block_on(begin).expect("noted").expect("a pull");
    let noted = images
        .access
        .note_pulled_image(PRIVATE, &id, &credentials, Some("1"));
    block_on(noted);
    let dir = scratch.join("root/image_manager");
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    let mut texts = Vec::new();
    for (kind, of) in [("pulling", PRIVATE), ("pulled", &*id)] {
        let path = dir.join(kind).join(record_file_name(of));
        assert_eq!((mode(&dir.join(kind)), mode(&path)), (0o700, 0o600));
        texts.push((path.clone(), fs::read_to_string(path).expect("record")));
    }
    let [(_, pulling), (pulled_path, pulled)] = &texts[..] else {
        panic!("{texts:?}");
    };
    let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
    assert_eq!(value(pulling), json!({"v": 1, "image": PRIVATE}));
    let secret = json!({"uid": "u", "namespace": "ns", "name": "pull", "digest": "1"});
    let access = json!({"everybody": false, "secrets": [secret]});
    let whole = json!({"v": 1, "image": id, "imported": false, "repositories": {"registry.test/app": access}});
    assert_eq!(value(pulled), whole);
    // A record that says nothing, or that a later agent made, gives nobody a right.
    let mut later = whole;
    later["v"] = json!(2);
    later["repositories"]["registry.test/app"]["everybody"] = json!(true);
    for text in ["{", &later.to_string()] {
        fs::write(pulled_path, text).expect("write");
        assert!(!block_on(images.may_use(&plain(), PRIVATE, &id)), "{text}");
    }
    let noted = images
        .access
        .note_pulled_image(PRIVATE, &id, &credentials, Some("1"));
    block_on(noted);
    assert_eq!(fs::read_to_string(pulled_path).expect("record"), *pulled);
}

#[test]
fn images_are_named_by_the_beginning_of_their_id() {
    // IMG-29 IMG-30 IMG-31
    let (scratch, fake) = (TestDir::new("images"), Rc::new(Fake::new()));
    let commands = |stock| ImageCommands {
        images: images(&scratch, &fake),
        stock,
        runtime: Rc::clone(&fake) as Rc<dyn RuntimeService>,
    };
    let of_runtime = commands(ImageStock::Runtime);
    let names: Vec<String> = (0..300).map(|n| format!("registry.test/app:{n}")).collect();
    let ids: Vec<String> = names.iter().map(|name| fake.add_image(name)).collect();
    let inspect = |typed: &str| block_on(of_runtime.inspect_image(typed, false));
    let short = &ids[3][7..20];
    for typed in [short, &ids[3][..20], &ids[3], &names[3]] {
        let shown = inspect(typed).expect(typed);
        assert_eq!(shown["status"]["id"], *ids[3], "{typed}");
        assert_eq!(shown["status"]["repoTags"], json!([names[3]]));
        assert!(shown.get("info").is_none(), "its layers are the runtime's");
    }
    // Of 300 ids two begin with the same three digits.
    let start = |id: &&String| ids.iter().filter(|other| other[7..10] == id[7..10]).count() > 1;
    let shared = &ids.iter().find(start).expect("two")[7..10];
    let several = inspect(shared).expect_err("ambiguous");
    assert_eq!(several.status, 400);
    assert!(several.message.contains("is ambiguous"), "{several:?}");
    assert_eq!(inspect("0123456789abcdefg").expect_err("none").status, 404);
    assert_eq!(inspect(&shared[..2]).expect_err("short").status, 404);
    let removed = block_on(of_runtime.remove_image(short));
    assert_eq!(removed, Ok(vec![format!("Deleted: {}", names[3])]));
    // What needs a store of its own says so.
    for (refusal, what) in [
        (
            block_on(of_runtime.inspect_image(&names[0], true)).expect_err("no store"),
            "save them with its own tools",
        ),
        (
            block_on(of_runtime.tag_image(&names[0], "b:1")).expect_err("no store"),
            "tag them with its own tools",
        ),
    ] {
        assert_eq!(refusal.status, 400);
        assert!(refusal.message.contains(what), "{refusal:?}");
    }
    let store = own_store(&scratch);
    let of_store = commands(ImageStock::Own(store.clone()));
    let archive = scratch.join("archive.tar");
    let layer = Stream::new().file("name", b"x").bytes();
    fs::write(&archive, docker_archive("app:1", &[&layer])).expect("archive");
    block_on(of_store.import_archive(archive, String::new(), None)).expect("imported");
    let id = store.image_records()[0].id.clone();
    // The runtime of this test has the id too.
    fake.change_image_id(&names[0], &id);
    let shown = block_on(of_store.inspect_image(&names[0], true)).expect("shown");
    assert_eq!(
        shown["info"]["imageSpec"]["config"]["Cmd"],
        json!(["/bin/sh"])
    );
    assert!(shown["info"]["layers"][0]["path"].as_str().is_some());
    // An image without layers is none: the runtime of this test has one that the store has not.
    let absent = block_on(of_store.inspect_image(&names[1], true)).expect_err("not in the store");
    assert_eq!(absent.status, 404);
    let tagged = block_on(of_store.tag_image(&names[0], "b"));
    assert_eq!(tagged.as_deref(), Ok("docker.io/library/b:latest"));
    let both = ["docker.io/library/app:1", "docker.io/library/b:latest"];
    assert_eq!(store.image_records()[0].names, both);
    let (by_digest, by_both) = (format!("b@{id}"), format!("b:1@{id}"));
    for name in ["B", &by_digest, &by_both, ""] {
        let refusal = block_on(of_store.tag_image(&names[0], name)).expect_err(name);
        assert_eq!(refusal.status, 400, "{name}");
    }
}

#[test]
fn the_policy_says_for_which_images_a_pod_needs_the_right() {
    // ICV-01 ICV-02
    let listed = || VerificationPolicy::NotAllowed(vec!["registry.test/".into()]);
    let elsewhere = || VerificationPolicy::NotAllowed(vec!["registry.test/other".into()]);
    // Who may use it: there from before, imported, brought by another pod's Secret, pulled for everybody.
    for (policy, may) in [
        (VerificationPolicy::Never, [true, true, true, true]),
        (VerificationPolicy::NotPreloaded, [true, true, false, true]),
        (listed(), [true, true, false, true]),
        (elsewhere(), [false, false, false, true]),
        (VerificationPolicy::Always, [false, false, false, true]),
    ] {
        let scratch = TestDir::new("images");
        let clock: Rc<dyn Clock> = Rc::new(SystemClock::new().expect("timer"));
        let complaints = Rc::new(Complaints::new(clock));
        let access = ImageAccess::new(
            &scratch.join("root"),
            policy.clone(),
            Lane::without_thread(),
            complaints,
        );
        let nobodys = PullCredentials {
            own: Vec::new(),
            brought: Vec::new(),
        };
        let secret = PullCredentials {
            own: Vec::new(),
            brought: vec![PullSecret {
                name: "other".into(),
                digest: "1".into(),
                ..PullSecret::default()
            }],
        };
        block_on(access.note_imported_images(&["imported"]));
        block_on(access.note_pulled_image(PRIVATE, "bound", &secret, Some("1")));
        block_on(access.note_pulled_image(PRIVATE, "open", &nobodys, None));
        let pod = plain();
        for (id, may) in ["there", "imported", "bound", "open"].into_iter().zip(may) {
            let told = block_on(access.may_use(&(), &pod, PRIVATE, id));
            assert_eq!(told, may, "{policy:?} {id}");
        }
        // The registry gave the imported one to everybody: it need not be asked again.
        block_on(access.note_pulled_image(PRIVATE, "imported", &nobodys, None));
        assert!(
            block_on(access.may_use(&(), &pod, PRIVATE, "imported")),
            "{policy:?}"
        );
        let broken = scratch.join("root/image_manager/pulled");
        for file in fs::read_dir(broken).expect("records").flatten() {
            fs::write(file.path(), b"{").expect("record");
        }
        let told = block_on(access.may_use(&(), &pod, PRIVATE, "open"));
        assert!(!told, "{policy:?}: a record that cannot be read");
    }
}

#[test]
fn what_the_node_itself_pulls_is_everybodys() {
    // IMG-20
    let with_secret = PullCredentials {
        own: Vec::new(),
        brought: vec![PullSecret {
            name: "pull".into(),
            digest: "1".into(),
            ..PullSecret::default()
        }],
    };
    let pod = plain();
    for node_first in [true, false] {
        let (scratch, fake) = (TestDir::new("images"), Rc::new(Fake::new()));
        fake.offer_private_image(PRIVATE, "node");
        let images = images_of(&scratch, &fake, Rc::new(vec![user("node")]), None);
        let by_node = || block_on(images.pull_for_node(PRIVATE, false)).expect("pulled");
        let by_pod = |id: &str| {
            let noted = images
                .access
                .note_pulled_image(PRIVATE, id, &with_secret, Some("1"));
            block_on(noted);
        };
        let may_use = |id: &str| block_on(images.may_use(&pod, PRIVATE, id));
        let id = if node_first {
            let id = by_node();
            by_pod(&id);
            id
        } else {
            let id = fake.add_image(PRIVATE);
            by_pod(&id);
            assert!(!may_use(&id), "only with the Secret");
            assert_eq!(by_node(), id);
            id
        };
        assert!(may_use(&id), "the node first: {node_first}");
    }
}

#[test]
fn an_image_that_comes_after_its_pod_was_deleted_is_not_everybodys() {
    // IMG-20
    // At a runtime that tells of such pulls, and at one that does not.
    for tells in [true, false] {
        let (scratch, fake) = (TestDir::new("images"), Rc::new(Fake::new()));
        let images = images(&scratch, &fake);
        let ensure = |pod: &dyn StartingPod| {
            let ensured = images.ensure_image(pod, &pod.pod().spec.containers[0]);
            block_on(ensured)
        };
        let notes = || {
            let dir = scratch.join("root/image_manager/pulling");
            fs::read_dir(dir).expect("directory").count()
        };
        let hangs = || Fault {
            op: Op::PullImage,
            target: None,
            times: 1,
            trouble: Trouble::Hangs,
        };
        fake.offer_private_image(PRIVATE, "u");
        fake.add_fault(hangs());
        fake.set_still_pulling(tells.then_some(true));
        let ensured = ensure(&Deleted(plain())).expect("it is to end");
        assert_eq!((ensured, notes()), (None, 1));
        // What the runtime does with it was past the point where it can be stopped.
        let id = fake.add_image(PRIVATE);
        block_on(images.tidy_access_records());
        let other = plain();
        let refused = ensure(&other).expect_err("the registry does not give it");
        assert_eq!(refused.reason, "ErrImagePull");
        assert_eq!(notes(), 1);
        fake.set_still_pulling(tells.then_some(false));
        if !tells {
            // It has had its time.
            (0..2).for_each(|_| block_on(images.tidy_access_records()));
        }
        for name in [PRIVATE, "registry.test/copy:1"] {
            assert!(!block_on(images.may_use(&other, name, &id)), "{name}");
        }
        assert_eq!(notes(), 0);
    }
    // One that was there before is everybody's as before.
    let (scratch, fake) = (TestDir::new("images"), Rc::new(Fake::new()));
    let images = images(&scratch, &fake);
    let id = fake.add_image(PRIVATE);
    fake.add_fault(Fault {
        op: Op::PullImage,
        target: None,
        times: 1,
        trouble: Trouble::Hangs,
    });
    fake.set_still_pulling(Some(false));
    let mut pod = plain();
    pod.0.spec.containers[0].image_pull_policy = "Always".into();
    let deleted = Deleted(pod);
    let ensured = block_on(images.ensure_image(&deleted, &deleted.pod().spec.containers[0]));
    assert_eq!(ensured.expect("it is to end"), None);
    assert!(block_on(images.may_use(&plain(), PRIVATE, &id)));
}

/// Reasons and messages of warnings.
type Warnings = Rc<RefCell<Vec<(String, String)>>>;

/// Collects the garbage of `stock`, and what it warns of.
fn garbage(
    scratch: &TestDir,
    fake: &Rc<Fake>,
    hands: &Rc<Hands>,
    stock: ImageStock,
) -> (ImageGarbageCollector, Warnings) {
    let clock: Rc<dyn Clock> = Rc::new(TestClock(Rc::clone(hands)));
    let images = images_by(scratch, fake, Rc::new(()), None, clock);
    let flags = config::flags::parse_flags(Vec::new(), &scratch.join("")).expect("flags");
    let host = config::HostIdentity {
        hostname: "node".into(),
    };
    let cfg = config::load_config(flags, &host)
        .expect("configuration")
        .config;
    let told = Warnings::default();
    let warn = {
        let told = Rc::clone(&told);
        move |reason: &str, message: &str| {
            told.borrow_mut()
                .push((reason.to_owned(), message.to_owned()));
        }
    };
    let runtime = Rc::clone(fake) as Rc<dyn RuntimeService>;
    let garbage = ImageGarbageCollector::new(&cfg.images, images, stock, runtime, Box::new(warn));
    (garbage, told)
}

#[test]
fn one_that_is_broken_keeps_no_other_image() {
    // GC-10 GC-13 CRI-75
    let (scratch, fake) = (TestDir::new("images"), Rc::new(Fake::new()));
    let hands = Rc::new(Hands::default());
    let (garbage, told) = garbage(&scratch, &fake, &hands, ImageStock::Runtime);
    let sandbox = SandboxConfig {
        uid: "broken".into(),
        ..SandboxConfig::default()
    };
    block_on(fake.run_pod_sandbox(&sandbox)).expect("a sandbox");
    for name in ["registry.test/a:1", "registry.test/b:1"] {
        fake.add_image(name);
    }
    let fails = |op, times| Fault {
        op,
        target: None,
        times,
        trouble: Trouble::Fails(RuntimeError::Failed("its shim is gone".into())),
    };
    fake.add_fault(fails(Op::PodStatus, u32::MAX));
    fake.add_fault(fails(Op::RemoveImage, 1));
    let kept = || block_on(fake.list_images()).expect("images").len();
    let executor = smol::LocalExecutor::new();
    let (ask, asked) = smol::channel::bounded(1);
    let task = executor.spawn(garbage.run_collector(asked));
    let run = |now| {
        hands.set(now);
        while executor.try_tick() {}
    };
    run(MonoTime(0) + PERIOD);
    assert_eq!(kept(), 2, "there is room");
    let (answer, done) = smol::channel::bounded(1);
    ask.try_send(answer).expect("asked");
    run(MonoTime(0) + PERIOD + PERIOD / 2);
    assert!(done.try_recv().is_ok());
    assert_eq!(kept(), 1, "one cannot be removed, the other goes");
    fake.set_image_fs(1000, 100);
    run(MonoTime(0) + PERIOD + PERIOD);
    assert_eq!(kept(), 0);
    assert!(
        told.take()
            .iter()
            .all(|(reason, _)| reason != "ImageGCFailed")
    );
    drop(task);
}

#[test]
fn what_the_garbage_of_images_is_told_for() {
    // GC-13 IGC-01 EVT-35
    let (scratch, fake) = (TestDir::new("images"), Rc::new(Fake::new()));
    let hands = Rc::new(Hands::default());
    let stock = ImageStock::Own(own_store(&scratch));
    let (garbage, told) = garbage(&scratch, &fake, &hands, stock);
    let executor = smol::LocalExecutor::new();
    // Nobody asks.
    let (_ask, asked) = smol::channel::bounded(1);
    let task = executor.spawn(garbage.run_collector(asked));
    let mut now = MonoTime(0);
    let mut next = || {
        now = now + PERIOD;
        hands.set(now);
        while executor.try_tick() {}
        let reasons: Vec<String> = told
            .borrow()
            .iter()
            .map(|(reason, _)| reason.clone())
            .collect();
        let last = told
            .take()
            .into_iter()
            .next_back()
            .map(|(_, message)| message);
        (reasons, last.unwrap_or_default())
    };
    let none: [&str; 0] = [];
    assert_eq!(next().0, none, "there is room");
    // Once, an unknown capacity of the disk may be chance; twice it is none.
    let unknown = |times| Fault {
        op: Op::ImageFsInfo,
        target: None,
        times,
        trouble: Trouble::Fails(RuntimeError::Failed("no answer".into())),
    };
    fake.add_fault(unknown(1));
    assert_eq!(next().0, none);
    assert_eq!(next().0, none, "it went well");
    fake.add_fault(unknown(2));
    assert_eq!(next().0, none);
    assert_eq!(
        next(),
        (vec!["ImageGCFailed".to_owned()], "no answer".to_owned())
    );
    next();
    // A disk of no size is told at once.
    fake.set_image_fs(0, 0);
    let told_once = |reason: &str| vec![reason.to_owned()];
    let (reasons, message) = next();
    assert_eq!(reasons, told_once("InvalidDiskCapacity"));
    assert_eq!(message, "invalid capacity 0 on image filesystem");
    assert_eq!(next().0, ["InvalidDiskCapacity", "ImageGCFailed"]);
    fake.set_image_fs(1000, 900);
    assert_eq!(next().0, none);
    // It is full, and not of images: to 80 percent.
    fake.set_image_fs(1000, 100);
    let (reasons, message) = next();
    assert_eq!(reasons, told_once("FreeDiskSpaceFailed"));
    assert!(
        message.contains("Attempted to free 100 bytes, but only found 0 bytes"),
        "{message}"
    );
    assert_eq!(next().0, ["FreeDiskSpaceFailed", "ImageGCFailed"]);
    drop(task);
}

#[test]
fn a_failed_pull_is_delayed_until_images_arrive() {
    // IMG-10
    let (scratch, fake) = (TestDir::new("images"), Rc::new(Fake::new()));
    let images = images(&scratch, &fake);
    let pod = plain();
    let container = &pod.0.spec.containers[0];
    let ensure = || block_on(images.ensure_image(&pod, container));
    let waits = || ensure().expect_err("it is nowhere");
    let failed = waits();
    assert_eq!(failed.reason, "ErrImagePull");
    pod.1.take();
    let delayed = waits();
    assert_eq!(delayed.reason, "ImagePullBackOff");
    assert!(delayed.message.contains(&failed.message), "{delayed:?}");
    let told = [
        (
            EventSeverity::Normal,
            "BackOff",
            format!("Back-off pulling image \"{PRIVATE}\""),
        ),
        (
            EventSeverity::Warning,
            "Failed",
            "Error: ImagePullBackOff".to_owned(),
        ),
    ]
    .map(|(severity, reason, text)| (Some("c".to_owned()), severity, reason.to_owned(), text));
    assert_eq!(pod.1.take(), told);
    images.forget_pull_delays(&pod.0);
    assert_eq!(waits().reason, "ErrImagePull", "tried at once");
    images.forget_pull_delays(&pod.0);
    fake.offer_image(PRIVATE);
    assert!(ensure().expect("there").is_some());
    assert!(images.take_heap_used() && !images.take_heap_used());
}

#[test]
fn credentials_are_tried_one_after_the_other() {
    // IMG-13
    let (scratch, fake) = (TestDir::new("images"), Rc::new(Fake::new()));
    fake.offer_private_image(PRIVATE, "right");
    let own = |names: &[&str]| -> Vec<PullAttempt> {
        let of = |name: &&str| PullAttempt {
            auth: Some(user(name)),
            digest: Some((*name).into()),
        };
        names.iter().map(of).collect()
    };
    for (name, own, node, tried, with) in [
        (
            "the pod's, in order",
            own(&["old", "right", "last"]),
            vec![],
            2,
            Ok(Some("right")),
        ),
        (
            "then the node's",
            own(&["old"]),
            vec![user("right")],
            2,
            Ok(None),
        ),
        (
            "each once",
            own(&["right"]),
            vec![user("right")],
            1,
            Ok(Some("right")),
        ),
        (
            "of the node alone",
            vec![],
            vec![user("older"), user("right")],
            2,
            Ok(None),
        ),
        ("none", vec![], vec![], 1, Err("\"\" may not have it")),
        (
            "all wrong",
            own(&["old", "older"]),
            vec![user("old")],
            2,
            Err("\"old\" may not have it; \"older\" may not have it"),
        ),
    ] {
        let images = images_of(&scratch, &fake, Rc::new(node), None);
        fake.take_calls();
        let pulled = block_on(images.pull_with_credentials(PRIVATE, &own, None, false));
        let pulled = pulled.map(|pulled| pulled.with);
        let with = with.map(|digest: Option<&str>| digest.map(str::to_owned));
        let with = with.map_err(|e: &str| RuntimeError::Denied(e.into()));
        assert_eq!(pulled, with, "{name}");
        let mut calls = fake.take_calls();
        calls.retain(|(op, _)| *op == Op::PullImage);
        assert_eq!(calls.len(), tried, "{name}");
    }
    // What no credential mends is not tried again.
    let absent = images(&scratch, &fake);
    let absent = block_on(absent.pull_with_credentials(
        "registry.test/absent:1",
        &own(&["a", "b"]),
        None,
        false,
    ));
    assert!(
        matches!(absent, Err(RuntimeError::NotFound(_))),
        "{absent:?}"
    );
    assert_eq!(fake.take_calls().len(), 1);
}

#[test]
fn pulls_wait_for_their_turn() {
    // IMG-16
    let (scratch, fake) = (TestDir::new("images"), Rc::new(Fake::new()));
    let images = images_of(&scratch, &fake, Rc::new(()), Some(1));
    fake.add_fault(Fault {
        op: Op::PullImage,
        target: None,
        times: 2,
        trouble: Trouble::Hangs,
    });
    fake.offer_image(PRIVATE);
    let pull = || Box::pin(images.pull_with_credentials(PRIVATE, &[], None, false));
    let (mut first, mut second) = (pull(), pull());
    block_on(async {
        assert!(poll_once(&mut first).await.is_none());
        assert!(poll_once(&mut second).await.is_none());
        assert_eq!(
            fake.hanging(Op::PullImage),
            1,
            "the other one has not begun"
        );
        fake.release(Op::PullImage);
        assert!(first.await.is_ok());
        assert!(poll_once(&mut second).await.is_none());
        assert_eq!(fake.hanging(Op::PullImage), 1);
        fake.release(Op::PullImage);
        assert!(second.await.is_ok());
    });
}

#[test]
fn an_image_waits_for_the_link() {
    // METER-02 METER-04
    let (scratch, fake) = (TestDir::new("images"), Rc::new(Fake::new()));
    let used = Arc::new(AtomicU64::new(900));
    let counted = Arc::clone(&used);
    let settings = link_budget::LinkBudgetSettings {
        daily_bytes: 1000,
        pull_window: None,
    };
    let now = move || link_budget::BudgetMoment {
        wall: None,
        up: MonoTime(0),
        counted: counted.load(Ordering::Relaxed),
    };
    let kept = link_budget::KeptBudget {
        used: 900,
        ..link_budget::KeptBudget::default()
    };
    let mut images = images(&scratch, &fake);
    let budget = Arc::new(LinkBudget::from_record(settings, kept, Box::new(now)));
    Rc::get_mut(&mut images).expect("nobody else").budget =
        Some(Arc::clone(&budget) as Arc<dyn PullBudget>);
    fake.offer_image(PRIVATE);
    let mut pod = plain();
    let ensure = |pod: &Plain| block_on(images.ensure_image(pod, &pod.0.spec.containers[0]));
    let pulls = || {
        let calls = fake.take_calls();
        calls.iter().filter(|(op, _)| *op == Op::PullImage).count()
    };
    for _ in 0..3 {
        let waiting = ensure(&pod).expect_err("no bytes are left");
        assert_eq!(waiting.reason, "PullDeferred");
        assert!(
            waiting.message.contains("0B of 800B are left"),
            "{waiting:?}"
        );
    }
    assert_eq!(pulls(), 0, "no registry is asked");
    let told = pod.1.take();
    let reasons: Vec<&str> = told.iter().map(|(_, _, reason, _)| &**reason).collect();
    assert_eq!(reasons, ["PullDeferred"], "told once");
    // A volume's image waits in the same way.
    let volumes = json!([{"name": "v", "image": {"reference": "registry.test/data:1"}}]);
    pod.0.spec.volumes = serde_json::from_value(volumes).expect("volumes");
    let mounts = json!([{"name": "v", "mountPath": "/v"}]);
    pod.0.spec.containers[0].volume_mounts = serde_json::from_value(mounts).expect("mounts");
    for _ in 0..3 {
        let known = PodVolumeImages::default();
        let ensured = images.ensure_volume_images(&pod, &known, &pod.0.spec.containers[0]);
        let waiting = block_on(ensured).expect_err("no bytes are left");
        assert_eq!(waiting.reason, "PullDeferred");
    }
    let told = pod.1.take();
    let reasons: Vec<&str> = told.iter().map(|(_, _, reason, _)| &**reason).collect();
    assert_eq!((reasons, pulls()), (vec!["PullDeferred"], 0));
    // What the registry's word shows to be too large waits in the same way, and is told with its size.
    pod.0.spec.priority = Some(2_000_000_000);
    let says = "needs 7MB".to_owned();
    let too_large = || Fault {
        op: Op::PullImage,
        target: None,
        times: 1,
        trouble: Trouble::Fails(RuntimeError::Deferred(says.clone())),
    };
    fake.add_fault(too_large());
    let waiting = ensure(&pod).expect_err("too large");
    assert_eq!(waiting.reason, "PullDeferred");
    assert!(waiting.message.ends_with(&says), "{waiting:?}");
    assert_eq!(pulls(), 1);
    // A critical pod gets its image, with the first try after that: there was no back-off.
    assert!(ensure(&pod).expect("there").is_some());
    assert_eq!(pulls(), 1);
    // An image that is here is no reason to wait, whatever was used.
    used.store(5000, Ordering::Relaxed);
    pod.0.spec.priority = None;
    pod.0.spec.containers[0].image_pull_policy = "Always".into();
    assert!(ensure(&pod).expect("there").is_some());
    assert_eq!(pulls(), 1, "the registry is asked for its word");
    // Nor is it if the tag has moved to one that is too large; that is known then.
    fake.add_fault(too_large());
    let older = ensure(&pod).expect("it may").expect("there");
    assert_eq!(pulls(), 1);
    let parsed = ImageReference::parse(PRIVATE).expect("a reference");
    assert!(budget.admit_fetch(&parsed, 7000).is_err());
    assert!(ensure(&pod).expect("it may").is_some());
    assert_eq!(pulls(), 0, "the registry is not asked again");
    // A pod that may not use it waits, and does not ask again either.
    fs::remove_dir_all(scratch.join("root/image_manager")).expect("records");
    let credentials = PullCredentials {
        own: Vec::new(),
        brought: Vec::new(),
    };
    let bound = images
        .access
        .note_pulled_image(PRIVATE, &older.id, &credentials, Some("1"));
    block_on(bound);
    let waiting = ensure(&pod).expect_err("it is not its own");
    assert_eq!((waiting.reason, pulls()), ("PullDeferred", 0));
}

#[test]
fn a_list_waits_for_the_link() {
    // METER-04
    let (scratch, fake) = (TestDir::new("images"), Rc::new(Fake::new()));
    let hands = Rc::new(Hands::default());
    let clock: Rc<dyn Clock> = Rc::new(TestClock(Rc::clone(&hands)));
    let mut images = images_by(&scratch, &fake, Rc::new(()), None, clock);
    let up = Arc::new(AtomicU64::new(0));
    let read = Arc::clone(&up);
    let now = move || link_budget::BudgetMoment {
        wall: None,
        up: MonoTime(read.load(Ordering::Relaxed)),
        counted: 0,
    };
    let settings = link_budget::LinkBudgetSettings {
        daily_bytes: 1000,
        pull_window: None,
    };
    let kept = link_budget::KeptBudget::default();
    let budget = Arc::new(LinkBudget::from_record(settings, kept, Box::new(now)));
    Rc::get_mut(&mut images).expect("nobody else").budget =
        Some(Arc::clone(&budget) as Arc<dyn PullBudget>);
    let path = scratch.join("lists");
    fs::create_dir(&path).expect("directory");
    fs::write(path.join("a.txt"), PRIVATE).expect("list");
    let directory = ImageDropInWatcher {
        images,
        store: own_store(&scratch),
        path,
        doorbells: false,
    };
    let executor = smol::LocalExecutor::new();
    let task = executor.spawn(directory.watch_directory(async || true));
    let pulls_at = |second: u64| {
        up.store(second * 1000, Ordering::Relaxed);
        hands.set(MonoTime(second * 1000));
        while executor.try_tick() {}
        let calls = fake.take_calls();
        calls.iter().filter(|(op, _)| *op == Op::PullImage).count()
    };
    fake.add_fault(Fault {
        op: Op::PullImage,
        target: None,
        times: 9,
        trouble: Trouble::Fails(RuntimeError::Deferred("needs 7kB".into())),
    });
    let parsed = ImageReference::parse(PRIVATE).expect("a reference");
    assert_eq!(pulls_at(0), 0, "it settles");
    assert_eq!(pulls_at(2), 1);
    assert!(budget.admit_fetch(&parsed, 7000).is_err());
    for second in [62, 3600, 7200, 86_399] {
        assert_eq!(pulls_at(second), 0, "{second}: no registry is asked");
    }
    assert_eq!(pulls_at(86_400), 1, "the next day, at once");
    drop(task);
}
