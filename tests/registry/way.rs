//! The way to a registry: TLS, IPv6, proxies.

use picolet::image::pull::{PullError, PullSettings};
use picolet::image::registry::RegistriesConfig;
use picolet::net::ProxyVariables;
use serde_json::json;

use crate::held_port::held_port;
use crate::proxy::{Fault, Proxy, Tunnel};
use crate::registry::{Registry, able};
use crate::{Bench, NAME, layers};

#[test]
fn over_tls_by_the_cas_that_are_configured() {
    if !able() {
        return;
    }
    let registry = Registry::start_tls();
    registry.fill(NAME, &layers(), &[]);
    let host = registry.address.to_string();
    let image = format!("{host}/{NAME}:1");
    let with = |tls: serde_json::Value| {
        let document = json!({"configs": { &host: {"tls": tls} }});
        Bench::new(PullSettings {
            registries: RegistriesConfig::parse(&document).expect("registries"),
            ..PullSettings::default()
        })
    };
    let ca = registry.dir.0.join("ca.pem");
    let bench = with(json!({ "ca_file": ca }));
    bench.check(&bench.pull(&image, None).expect("trusted"));
    let bench = with(json!({"insecure_skip_verify": true}));
    bench.check(&bench.pull(&image, None).expect("not checked"));
    let bench = with(json!({}));
    let error = bench.pull(&image, None).expect_err("unknown");
    assert!(
        matches!(&error, PullError::Failed(e) if e.starts_with("cannot trust")),
        "{error}"
    );
    let bench = with(json!({"ca_file": "/nonexistent/ca.pem"}));
    let error = bench.pull(&image, None).expect_err("no file");
    assert!(error.to_string().contains("/nonexistent/ca.pem"), "{error}");
}

#[test]
fn over_six() {
    if !able() {
        return;
    }
    let registry = Registry::start();
    registry.fill(NAME, &layers(), &[]);
    // skopeo has no words for such an address: the registry is filled by the other one.
    let proxy = Proxy::start_at("[::1]:0", registry.address, |_| Fault::None);
    let bench = Bench::new(PullSettings::default());
    let image = format!("{}/{NAME}:1", proxy.address);
    assert!(image.starts_with("[::1]:"));
    bench.check(&bench.pull(&image, None).expect("pulled"));
}

#[test]
fn through_a_proxy_that_knows_the_name() {
    if !able() {
        return;
    }
    let registry = Registry::start_tls();
    registry.fill(NAME, &layers(), &[]);
    let tunnel = Tunnel::start(registry.address);
    let registries = json!({"configs": {
        "registry.test": {"tls": {"ca_file": registry.dir.0.join("ca.pem")}},
    }});
    let bench = Bench::new(PullSettings {
        registries: RegistriesConfig::parse(&registries).expect("registries"),
        proxies: ProxyVariables {
            https: format!("http://user:p%40ss@{}", tunnel.address),
            ..ProxyVariables::default()
        },
        ..PullSettings::default()
    });
    // Nobody but the proxy knows where that is.
    let image = format!("registry.test/{NAME}:1");
    bench.check(&bench.pull(&image, None).expect("pulled"));
    let heads = tunnel.heads();
    assert!(!heads.is_empty());
    for head in heads {
        assert!(head.starts_with("CONNECT registry.test:443 "), "{head}");
        assert!(
            head.to_lowercase().contains("proxy-authorization: basic "),
            "{head}"
        );
    }
    // A mirror in plain text is tunnelled to as well, by the other variable.
    let registry = Registry::start();
    registry.fill(NAME, &layers(), &[]);
    let tunnel = Tunnel::start(registry.address);
    let registries = json!({"mirrors": {
        "registry.test": {"endpoint": ["http://mirror.test:5000"]},
    }});
    let bench = Bench::new(PullSettings {
        registries: RegistriesConfig::parse(&registries).expect("registries"),
        proxies: ProxyVariables {
            http: tunnel.address.to_string(),
            ..ProxyVariables::default()
        },
        ..PullSettings::default()
    });
    bench.check(&bench.pull(&image, None).expect("pulled"));
    assert!(tunnel.heads()[0].starts_with("CONNECT mirror.test:5000 "));
}

#[test]
fn a_proxy_that_refuses_or_is_away_is_named_without_its_password() {
    // Not a proxy at all: it answers in a way of its own, or not.
    let port = held_port();
    let bench = Bench::new(PullSettings {
        proxies: ProxyVariables {
            https: format!("http://user:secret@127.0.0.1:{port}"),
            ..ProxyVariables::default()
        },
        ..PullSettings::default()
    });
    let error = bench
        .pull("registry.test/a:1", None)
        .expect_err("nobody listens");
    assert!(matches!(&error, PullError::Unavailable(_)), "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");
}
