//! Layers of which a pod knows the digest only, because another pod's Secret brought them here.

use super::*;

/// Authorization of `user:secret`, and of the same user after the password changed.
const BASIC: &str = "Basic dXNlcjpzZWNyZXQ=";
const LATER: &str = "Basic dXNlcjpsYXRlcg==";

fn credential(server: &Server, password: &str) -> Option<RegistryCredential> {
    let host = server.address.to_string();
    only(&json!({"auths": { host: {"username": "user", "password": password} }}))
}

/// The registry of a private repository, `team`, and of one for everybody, `open`, that has what `open` is given.
fn private(team: Vec<Offer>, open: Vec<Offer>) -> Server {
    Server::start(move |seen| {
        if seen.path.contains("/open/") {
            return any(&open, seen);
        }
        match seen.authorization.as_str() {
            BASIC | LATER => any(&team, seen),
            _ => reply(401, "").with("WWW-Authenticate", "Basic realm=\"r\""),
        }
    })
}

/// Answer of the first offer that has the content. A tag is the number of an offer.
fn any(offers: &[Offer], seen: &Seen) -> Reply {
    let (path, tag) = seen.path.rsplit_once('/').expect("a path");
    if let Ok(number) = tag.parse::<usize>()
        && let Some(offer) = offers.get(number - 1)
    {
        let path = format!("{path}/1");
        return offer.answer(&Seen {
            path,
            ..seen.clone()
        });
    }
    let answers = offers.iter().map(|offer| offer.answer(seen));
    answers
        .into_iter()
        .find(|reply| reply.status != 404)
        .unwrap_or_else(|| reply(404, "{}"))
}

/// An image whose configuration names the layers `plain`, and whose manifest names the blobs `packed`. The blob
/// `withheld` is missing.
fn forged(plain: &[&[u8]], packed: &[&[u8]], withheld: &[u8]) -> Offer {
    let mut layout = Layout::new();
    let top = layout.image(&config(plain, "forged"), packed);
    let layers = packed.iter().map(|l| Digest::compute(l)).collect();
    let mut offer = Offer::from(layout, top, layers);
    offer.blobs.retain(|(_, data)| data != withheld);
    offer
}

fn named(server: &Server, repository: &str, tag: usize) -> String {
    format!("{}/{repository}/app:{tag}", server.address)
}

impl Bench {
    fn pull_with(&self, image: &str, credential: Option<RegistryCredential>) -> PullOutcome {
        smol::block_on(self.puller.pull_image(image, credential))
    }
}

/// Requests for a blob's bytes, and for its head.
fn asked(server: &Server, digest: Digest) -> (usize, usize) {
    let digest = digest.to_string();
    let of = |method: &str| {
        let seen = server.seen();
        let all = seen.iter().filter(|s| {
            s.path.contains(&format!("/blobs/{digest}"))
                && s.method == method
                && !matches!(s.authorization.as_str(), "")
        });
        all.count()
    };
    (of("GET"), of("HEAD"))
}

#[test]
fn who_knows_a_digest_does_not_get_the_layer() {
    let plain = file("key", b"the team's own");
    let packed = gzip(&plain);
    let mine = file("mine", b"x");
    // The stranger's own blob where the layer's should be: there it is, and under its digest.
    let swapped = forged(&[&plain], &[&gzip(&mine)], b"");
    let server = private(
        vec![Offer::of(core::slice::from_ref(&plain))],
        vec![swapped],
    );
    let absent = forged(&[&plain], &[&packed], &packed);
    // Whatever is asked for, it is said to be there.
    let boaster = Server::start(move |seen| match seen.method.as_str() {
        "HEAD" if seen.path.contains("/blobs/") => reply(200, ""),
        _ => absent.answer(seen),
    });
    let mut bench = Bench::new();
    let own = bench.pull_with(&named(&server, "team", 1), credential(&server, "secret"));
    let own = own.expect("pulled");
    for restarted in [false, true] {
        if restarted {
            bench.restart(PullSettings::default());
        }
        for (name, image) in [
            ("a registry of her own", image(&boaster)),
            ("another repository", named(&server, "open", 1)),
        ] {
            let got = bench.pull(&image);
            assert!(got.is_err(), "{name}: {got:?}");
        }
        assert_eq!(bench.read(&own, "key"), b"the team's own");
    }
    assert_eq!(bench.store.list_images().len(), 1);
    // Nor if the team itself, which has the layer, pulled the stranger's image.
    let hers = named(&server, "open", 1);
    let pulled = bench.pull_with(&hers, credential(&server, "secret"));
    assert!(pulled.is_ok(), "{pulled:?}");
    let got = bench.pull(&hers);
    assert!(got.is_err(), "{got:?}");
}

#[test]
fn nor_what_only_arrived() {
    let plain = [file("a", b"the team's own"), file("b", b"more")];
    let packed = gzip(&plain[0]);
    let offer = Offer::of(&plain);
    let last = offer.layers[1].to_string();
    // Its second layer is never delivered, so the first one lies fetched and is of no image.
    let team = Server::start(move |seen| {
        if seen.authorization != BASIC {
            return reply(401, "").with("WWW-Authenticate", "Basic realm=\"r\"");
        }
        match seen.path.contains(&last) {
            true => reply(403, ""),
            false => offer.answer(seen),
        }
    });
    let forged = forged(&[&plain[0]], &[&packed], &packed);
    let hers = Server::start(move |seen| forged.answer(seen));
    let mut bench = Bench::new();
    let mine = || credential(&team, "secret");
    assert!(bench.pull_with(&image(&team), mine()).is_err());
    for restarted in [false, true] {
        if restarted {
            bench.restart(PullSettings::default());
        }
        let arriving = bench.arriving();
        let whole = arriving.iter().filter(|name| !name.ends_with(".part"));
        assert_eq!(whole.count(), 1, "{arriving:?}");
        let got = bench.pull(&image(&hers));
        assert!(got.is_err(), "{got:?}");
    }
    // Who fetched it has it still.
    let (first, _) = asked(&team, Digest::compute(&packed));
    assert!(bench.pull_with(&image(&team), mine()).is_err());
    assert_eq!(asked(&team, Digest::compute(&packed)), (first, 0));
}

#[test]
fn who_may_have_a_layer_need_not_fetch_it() {
    let base = file("base", b"the team's own");
    let blob = Digest::compute(&gzip(&base));
    let tops: Vec<Vec<u8>> = (0..4).map(|n| file("top", &[n])).collect();
    let offer = |n: usize| Offer::of(&[base.clone(), tops[n].clone()]);
    let all: Vec<Offer> = (0..4).map(offer).collect();
    let server = private(all.clone(), all.clone());
    let copy = Server::start(move |seen| any(&all, seen));
    let bench = Bench::new();
    let image = |n| named(&server, "team", n);
    let pull = |n: usize, password: &str| {
        let done = bench.pull_with(&image(n), credential(&server, password));
        bench
            .store
            .image_by_id(&done.expect("pulled"))
            .expect("there")
    };
    let first = pull(1, "secret");
    assert_eq!(asked(&server, blob), (1, 0));
    // The same Secret: nothing is asked. Another one: the registry is, and only once.
    let second = pull(2, "secret");
    assert_eq!(asked(&server, blob), (1, 0));
    let third = pull(3, "later");
    assert_eq!(asked(&server, blob), (1, 1));
    let fourth = pull(4, "later");
    assert_eq!(asked(&server, blob), (1, 1));
    // Another registry is not believed: it delivers, and from then on the layer is everybody's. It is unpacked once.
    let elsewhere = bench.pulled(&format!("{}/a/app:1", copy.address));
    assert_eq!(elsewhere.id, first.id);
    assert_eq!(copy.count(&format!("/blobs/{blob}")), 1);
    let again = bench.pulled(&format!("{}/a/app:2", copy.address));
    assert_eq!(again.id, second.id);
    assert_eq!(copy.count(&format!("/blobs/{blob}")), 1);
    for record in [first, second, third, fourth] {
        assert_eq!(bench.read(&record.id, "base"), b"the team's own");
    }
    let dirs = fs::read_dir(bench.store.layers_root()).expect("layers");
    assert_eq!(dirs.count(), 6, "the base, four tops and the empty one");
    assert_eq!(bench.arriving(), Vec::<String>::new());
}
