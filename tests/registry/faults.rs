//! Each fault of a link or a registry by itself: one that passes is got over, one that lasts has its waiting reason.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;

use picolet::image::pull::{PullError, PullSettings};
use picolet::image::registry::RegistryTimeLimits;

use crate::proxy::{Asked, Fault, Proxy};
use crate::registry::{Filled, Registry, able};
use crate::{Bench, FILE_BYTES, NAME, layers};

/// Half of a layer.
const HALF: u64 = FILE_BYTES as u64 / 2;

/// A proxy that has `fault` for the first `times` requests of each layer.
fn faulty(registry: &Registry, filled: &Filled, fault: Fault, times: u64) -> Proxy {
    let layers = filled.layers.clone();
    let seen: Mutex<BTreeMap<String, u64>> = Mutex::default();
    Proxy::start(registry.address, move |asked: &Asked| {
        if !layers.iter().any(|digest| asked.path.ends_with(digest)) {
            return Fault::None;
        }
        let mut seen = seen.lock().expect("seen");
        let times_seen = seen.entry(asked.path.clone()).or_default();
        *times_seen += 1;
        if *times_seen <= times {
            fault
        } else {
            Fault::None
        }
    })
}

#[test]
fn what_passes_is_got_over() {
    if !able() {
        return;
    }
    let registry = Registry::start();
    let filled = registry.fill(NAME, &layers(), &[]);
    let needed = filled.bytes();
    // Per cent of what is needed that may be fetched.
    for (fault, times, most) in [
        (Fault::Cut(0), 3, 105),
        (Fault::Cut(HALF), 2, 105),
        (Fault::Delay(Duration::from_millis(100)), 1, 105),
        // Longer than the client waits.
        (Fault::Delay(Duration::from_millis(1500)), 1, 105),
        // Refused by its head, for a page of somebody else's in between looks the same: what is under way is lost.
        (Fault::Truncate(HALF), 2, 210),
        // Seen when the layer is whole: it comes twice.
        (Fault::Spoil(HALF), 1, 205),
        (Fault::Status(429), 2, 105),
        (Fault::Busy(1), 1, 105),
        (Fault::Status(500), 2, 105),
        (Fault::Status(502), 2, 105),
        (Fault::Status(503), 2, 105),
        (Fault::Status(504), 2, 105),
    ] {
        let proxy = faulty(&registry, &filled, fault, times);
        let bench = Bench::with(PullSettings {
            limits: RegistryTimeLimits {
                stall: Duration::from_millis(700),
                answer: Duration::from_millis(700),
                retry: Duration::from_millis(1),
                ..RegistryTimeLimits::default()
            },
            ..PullSettings::default()
        });
        let pulled = bench.pull(&format!("{}/{NAME}:1", proxy.address), None);
        bench.check(&pulled.unwrap_or_else(|e| panic!("{fault:?}: {e}")));
        let layers = u64::try_from(filled.layers.len()).expect("few");
        assert_eq!(
            proxy.faults.load(Ordering::SeqCst),
            times * layers,
            "{fault:?}"
        );
        let fetched = proxy.bytes.load(Ordering::SeqCst);
        assert!(
            fetched * 100 <= needed * most,
            "{fault:?}: {fetched} bytes for {needed}"
        );
        if let Fault::Busy(seconds) = fault {
            for digest in &filled.layers {
                let asked = proxy.asked(digest);
                let waited = asked[1].at - asked[0].at;
                assert!(
                    waited >= Duration::from_secs(seconds),
                    "asked after {waited:?}"
                );
            }
        }
    }
}

#[test]
fn what_lasts_has_its_reason_and_nothing_is_visible() {
    // IMG-08
    if !able() {
        return;
    }
    let registry = Registry::start();
    let filled = registry.fill(NAME, &layers(), &[]);
    for (fault, reason, says) in [
        (Fault::Cut(0), "RegistryUnavailable", "cannot reach"),
        (Fault::Truncate(HALF), "ErrImagePull", "bytes"),
        (Fault::Spoil(HALF), "ErrImagePull", "digest"),
        (Fault::Status(429), "RegistryUnavailable", "429"),
        // Longer than a pull waits: the pod's back-off does.
        (Fault::Busy(3600), "RegistryUnavailable", "429"),
        (Fault::Status(500), "RegistryUnavailable", "500"),
        (Fault::Status(503), "RegistryUnavailable", "503"),
        (Fault::Status(401), "ErrImagePull", "refuses access"),
        (Fault::Status(403), "ErrImagePull", "403"),
        (Fault::Status(404), "ErrImagePull", "404"),
    ] {
        let proxy = faulty(&registry, &filled, fault, u64::MAX);
        let bench = Bench::new(PullSettings::default());
        let image = format!("{}/{NAME}:1", proxy.address);
        let error = bench.pull(&image, None).expect_err("a fault");
        let found = match &error {
            PullError::Unavailable(_) | PullError::Limited(_) => "RegistryUnavailable",
            PullError::Denied(_) | PullError::Failed(_) => "ErrImagePull",
            PullError::Invalid(_) | PullError::Full(_) | PullError::Deferred(_) => "another",
        };
        assert_eq!(found, reason, "{fault:?}: {error}");
        assert!(error.to_string().contains(says), "{fault:?}: {error}");
        if matches!(fault, Fault::Busy(_)) {
            for digest in &filled.layers {
                let asked = proxy.asked(digest).len();
                assert!(asked <= 1, "{fault:?}: asked {asked} times");
            }
        }
        assert_eq!(bench.images(), [""; 0], "{fault:?}");
        assert_eq!(bench.layer_dirs_on_disk(), ["empty"], "{fault:?}");
    }
}

#[test]
fn a_registry_that_is_restarted_goes_on_where_it_was() {
    if !able() {
        return;
    }
    let mut registry = Registry::start();
    let filled = registry.fill(NAME, &layers(), &[]);
    let (half, halfway) = mpsc::channel();
    let (killed, kill) = mpsc::channel();
    let kill = Mutex::new(kill);
    let first = filled.layers[0].clone();
    let count = AtomicU64::new(0);
    let proxy = Proxy::start(registry.address, move |asked| {
        if !asked.path.ends_with(&first) {
            return Fault::None;
        }
        match count.fetch_add(1, Ordering::SeqCst) {
            0 => Fault::Cut(HALF),
            1 => {
                half.send(()).expect("the test waits");
                kill.lock().expect("kill").recv().expect("killed");
                Fault::None
            }
            _ => Fault::None,
        }
    });
    let bench = Bench::with(PullSettings {
        limits: RegistryTimeLimits {
            retry: Duration::from_millis(500),
            ..RegistryTimeLimits::default()
        },
        ..PullSettings::default()
    });
    let image = format!("{}/{NAME}:1", proxy.address);
    let id = thread::scope(|scope| {
        let pull = scope.spawn(|| bench.pull(&image, None));
        halfway.recv().expect("half of a layer");
        registry.kill();
        killed.send(()).expect("the proxy waits");
        registry.start_again();
        pull.join().expect("thread").expect("pulled")
    });
    bench.check(&id);
    let (needed, fetched) = (filled.bytes(), proxy.bytes.load(Ordering::SeqCst));
    assert!(
        fetched * 100 <= needed * 105,
        "{fetched} bytes for {needed}"
    );
    let asked = proxy.asked(&filled.layers[0]);
    assert!(asked.iter().any(|a| a.from > 0), "{asked:?}");
}
