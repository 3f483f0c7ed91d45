//! Pulls from Debian's docker-registry, behind a proxy that cuts, delays, truncates, spoils and refuses.
//!
//! Needs docker-registry, skopeo, openssl, curl and root (layers hold files of root); says aloud what is missing and skips.
//!
//! | module | what it shows |
//! |---|---|
//! | `main` | good pulls, and random faults |
//! | [`faults`] | each fault by itself |
//! | [`way`] | TLS, IPv6, proxies |
//! | [`agent`] | the whole program, killed |
//! | [`artifact`] | a channel of releases |
//! | [`room`] | a disk that has room for one image |

#[macro_use]
#[path = "../common/skipped.rs"]
mod skipped;
#[path = "../common/held_port.rs"]
mod held_port;
#[path = "../common/program.rs"]
#[expect(dead_code, reason = "shared with tests of what the program costs")]
mod program;

mod agent;
#[cfg(feature = "update")]
mod artifact;
mod faults;
mod host;
mod proxy;
mod registry;
mod room;
mod way;

use core::time::Duration;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use picolet::image::pull::{PullError, PullSettings, Puller};
use picolet::image::registry::{RegistryCredential, RegistryTimeLimits};
use picolet::image::{ImageRecord, ImageStore};

use proxy::{Fault, Proxy};
use registry::{Random, Registry, Scratch, able, layer, noise};

/// Image name in the registry.
const NAME: &str = "team/app";
/// Size of each of the test image's files.
const FILE_BYTES: usize = 600_000;
/// Pulls through the proxy that draws its faults.
const SCHEDULES: u64 = 60;

/// A store with a puller that loses no time between attempts.
struct Bench {
    scratch: Scratch,
    store: ImageStore,
    puller: Puller,
}

impl Bench {
    fn new(settings: PullSettings) -> Self {
        Self::with(PullSettings {
            limits: RegistryTimeLimits {
                stall: Duration::from_secs(5),
                answer: Duration::from_secs(10),
                retry: Duration::from_millis(1),
                ..RegistryTimeLimits::default()
            },
            ..settings
        })
    }

    /// With time limits as given.
    fn with(settings: PullSettings) -> Self {
        let scratch = Scratch::new();
        let store = ImageStore::open(&scratch.0.join("images")).expect("store");
        let puller = Puller::new(store.clone(), settings);
        Self {
            scratch,
            store,
            puller,
        }
    }

    fn pull(
        &self,
        image: &str,
        credential: Option<RegistryCredential>,
    ) -> Result<String, PullError> {
        smol::block_on(self.puller.pull_image(image, credential))
    }

    /// Every file of the image has the bytes it was made with, and there are no others.
    fn check(&self, id: &str) {
        let mut found = BTreeSet::new();
        for dir in self.store.layer_dirs(id).expect("layers") {
            for entry in fs::read_dir(dir).expect("layer") {
                let entry = entry.expect("entry");
                let name = entry.file_name().into_string().expect("utf-8");
                let data = fs::read(entry.path()).expect("file");
                assert!(data == noise(&name, FILE_BYTES), "{name} has other bytes");
                found.insert(name);
            }
        }
        assert_eq!(found, files().iter().map(|f| (*f).to_owned()).collect());
    }

    /// Names of unpacked layers, visible or not.
    fn layer_dirs_on_disk(&self) -> Vec<String> {
        let mut names = Vec::new();
        for dir in ["layers", "staging"] {
            let entries = fs::read_dir(self.scratch.0.join("images").join(dir));
            let found = entries.into_iter().flatten().flatten();
            names.extend(found.filter_map(|e| e.file_name().into_string().ok()));
        }
        names
    }

    fn images(&self) -> Vec<String> {
        let name = |image: &std::sync::Arc<ImageRecord>| image.names.join(",");
        self.store.list_images().iter().map(name).collect()
    }
}

const fn files() -> [&'static str; 4] {
    ["alpha", "beta", "gamma", "delta"]
}

fn layers() -> Vec<Vec<u8>> {
    files().iter().map(|name| layer(name, FILE_BYTES)).collect()
}

#[test]
fn every_pull_through_a_bad_link_ends_right_or_says_why() {
    // IMG-08
    if !able() {
        return;
    }
    let registry = Registry::start();
    registry.fill(NAME, &layers(), &[]);
    let (mut right, mut refused) = (0, BTreeSet::new());
    for seed in 0..SCHEDULES {
        let random = Mutex::new(Random::new(seed));
        // From a link that is fine now and then to one that never is.
        let share = seed % 11;
        let proxy = Proxy::start(registry.address, move |_| {
            let mut random = random.lock().expect("random");
            if random.below(10) >= share {
                return Fault::None;
            }
            match random.below(7) {
                0 => Fault::Cut(random.below(400)),
                1 | 2 => Fault::Cut(random.below(FILE_BYTES as u64)),
                3 => Fault::Spoil(random.below(2000)),
                4 => Fault::Status([429, 500, 502, 503, 504][random.pick(5)]),
                5 => match random.below(2) {
                    0 => Fault::Truncate(random.below(FILE_BYTES as u64)),
                    _ => Fault::Status([401, 403, 404][random.pick(3)]),
                },
                _ => Fault::Delay(Duration::from_millis(random.below(30))),
            }
        });
        let bench = Bench::new(PullSettings::default());
        let image = format!("{}/{NAME}:1", proxy.address);
        match bench.pull(&image, None) {
            Ok(id) => {
                bench.check(&id);
                assert_eq!(bench.images(), [image], "seed {seed}");
                right += 1;
            }
            Err(error) => {
                assert_eq!(bench.images(), [""; 0], "seed {seed}");
                assert!(
                    proxy.faults.load(Ordering::SeqCst) > 0,
                    "seed {seed}: {error}"
                );
                let reason = match &error {
                    PullError::Unavailable(_) | PullError::Limited(_) => "RegistryUnavailable",
                    PullError::Denied(_) | PullError::Failed(_) => "ErrImagePull",
                    PullError::Invalid(_) | PullError::Full(_) | PullError::Deferred(_) => {
                        panic!("seed {seed}: {error}")
                    }
                };
                refused.insert(reason);
            }
        }
    }
    assert!(right >= SCHEDULES / 4, "only {right} of {SCHEDULES}");
    assert!(refused.contains("ErrImagePull"), "{refused:?}");
    eprintln!("{right} of {SCHEDULES} pulls ended right, the others with {refused:?}");
}

#[test]
fn twenty_cuts_cost_at_most_a_twentieth() {
    if !able() {
        return;
    }
    let registry = Registry::start();
    let filled = registry.fill(NAME, &layers(), &[]);
    let cuts = AtomicU64::new(0);
    let proxy = Proxy::start(registry.address, move |asked| {
        let again = asked.path.contains("/blobs/") && cuts.fetch_add(1, Ordering::SeqCst) < 20;
        if again {
            Fault::Cut(90_000)
        } else {
            Fault::None
        }
    });
    let bench = Bench::new(PullSettings::default());
    let id = bench.pull(&format!("{}/{NAME}:1", proxy.address), None);
    bench.check(&id.expect("pulled"));
    assert_eq!(proxy.faults.load(Ordering::SeqCst), 20);
    let needed = filled.bytes();
    let fetched = proxy.bytes.load(Ordering::SeqCst);
    eprintln!("20 cuts: {fetched} bytes for {needed}");
    assert!(
        fetched * 100 <= needed * 105,
        "{fetched} bytes for {needed}"
    );
}

#[test]
fn with_a_password() {
    // IMG-13
    if !able() {
        return;
    }
    let registry = Registry::start_guarded();
    registry.fill(NAME, &layers(), &["--dest-creds=user:secret"]);
    let image = format!("{}/{NAME}:1", registry.address);
    let user = |password: &str| {
        Some(RegistryCredential {
            username: "user".into(),
            password: password.into(),
            ..RegistryCredential::default()
        })
    };
    let bench = Bench::new(PullSettings::default());
    for wrong in [None, user("wrong")] {
        let error = bench.pull(&image, wrong).expect_err("refused");
        assert!(
            matches!(&error, PullError::Denied(e) if e.contains("refuses access")),
            "{error}"
        );
    }
    bench.check(&bench.pull(&image, user("secret")).expect("pulled"));
}

#[test]
fn what_skopeo_writes_in_other_forms() {
    if !able() {
        return;
    }
    let registry = Registry::start();
    for (name, flags) in [
        ("docker", &["--format=v2s2"][..]),
        ("zstd", &["--dest-compress-format=zstd"]),
    ] {
        registry.fill(name, &layers(), flags);
        let bench = Bench::new(PullSettings::default());
        let image = format!("{}/{name}:1", registry.address);
        let id = bench.pull(&image, None);
        bench.check(&id.unwrap_or_else(|e| panic!("{name}: {e}")));
    }
    assert!(Path::new(&registry.dir.0).exists());
}
