use alloc::string::ToString as _;

use super::*;

/// Thursday, 1 January 2026, 00:00 UTC.
const THURSDAY: i64 = 1_767_225_600;
const HOUR: i64 = 3600;
const EVERY_DAY: u8 = 0x7f;

fn at(seconds: i64) -> WallTime {
    WallTime::from_unix_seconds(THURSDAY + seconds)
}

fn window(days: u8, start_h: u32, length_h: u32) -> WeeklyWindow {
    WeeklyWindow {
        days,
        start_s: start_h * 3600,
        length_s: length_h * 3600,
    }
}

fn schedule(window: WeeklyWindow, spread_s: u32) -> UpdateSchedule {
    UpdateSchedule {
        window,
        spread_s,
        trusts_clock: false,
    }
}

#[test]
fn windows() {
    // UPD-07 PKG-26
    let night = window(EVERY_DAY, 22, 4);
    let thursdays = window(0b000_1000, 22, 4);
    for (name, window, now, opened, next) in [
        ("before", night, 21 * HOUR, None, 22 * HOUR),
        ("a second before", night, 22 * HOUR - 1, None, 22 * HOUR),
        ("first second", night, 22 * HOUR, Some(22 * HOUR), 46 * HOUR),
        (
            "past midnight",
            night,
            25 * HOUR,
            Some(22 * HOUR),
            46 * HOUR,
        ),
        (
            "last second",
            night,
            26 * HOUR - 1,
            Some(22 * HOUR),
            46 * HOUR,
        ),
        ("over", night, 26 * HOUR, None, 46 * HOUR),
        (
            "of the day that it began on",
            thursdays,
            25 * HOUR,
            Some(22 * HOUR),
            (7 * 24 + 22) * HOUR,
        ),
        (
            "another day",
            thursdays,
            47 * HOUR,
            None,
            (7 * 24 + 22) * HOUR,
        ),
        (
            "a week less a second",
            thursdays,
            (7 * 24 + 22) * HOUR - 1,
            None,
            (7 * 24 + 22) * HOUR,
        ),
        (
            "always",
            window(EVERY_DAY, 0, 24),
            24 * HOUR - 1,
            Some(0),
            24 * HOUR,
        ),
        (
            "always, the next day",
            window(EVERY_DAY, 0, 24),
            24 * HOUR,
            Some(24 * HOUR),
            48 * HOUR,
        ),
    ] {
        let found = window.opened_at_s(at(now)).map(|start| start - THURSDAY);
        assert_eq!(found, opened, "{name}");
        let found = window.next_opening_s(at(now)).map(|start| start - THURSDAY);
        assert_eq!(found, Some(next), "{name}");
    }
    // A clock may be before 1970.
    let first = window(EVERY_DAY, 0, 24).opened_at_s(WallTime::from_unix_seconds(-1));
    assert_eq!(first, Some(-DAY_S));
    assert_eq!(window(0, 0, 24).next_opening_s(at(0)), None);
    // Each bit opens one day of seven.
    for day in 0..7 {
        let only = window(1 << day, 0, 24);
        let open = (0..7).filter(|d| only.opened_at_s(at(d * DAY_S)).is_some());
        assert_eq!(open.map(|d| (d + 3) % 7).collect::<Vec<_>>(), [day]);
    }
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn looks() {
    // UPD-07 PKG-26
    let night = schedule(window(EVERY_DAY, 2, 4), 7200);
    let moment = night.look_offset_s("a");
    assert!((1..7200).contains(&moment), "{moment}");
    let start = 2 * HOUR;
    let due = start + moment;
    let begun = MonoTime::default();
    let now = begun + START_DELAY;
    let mut looks = UpdateLooks::new(begun);
    let ask = |looks: &UpdateLooks, mono, wall| {
        looks.next_step(&night, "a", (mono, at(wall)), true, false)
    };
    assert_eq!(
        ask(&looks, begun, due),
        NextLook::Wait(START_DELAY),
        "it has just started"
    );
    assert_eq!(ask(&looks, now, due - 1), NextLook::Wait(secs(1)));
    assert_eq!(ask(&looks, now, due), NextLook::Look(THURSDAY + start));
    assert_eq!(
        ask(&looks, now, 6 * HOUR - 1),
        NextLook::Look(THURSDAY + start)
    );
    assert_eq!(ask(&looks, now, 6 * HOUR), NextLook::Wait(MAX_WAIT));
    let wait = u64::try_from(moment).expect("positive") % 3600;
    let before = due - i64::try_from(wait.max(1)).expect("small");
    assert_eq!(ask(&looks, now, before), NextLook::Wait(secs(wait.max(1))));
    // Without a trusted clock, or while bytes cost money, there is no look.
    let of = |schedule: &UpdateSchedule, trusted, costs| {
        looks.next_step(schedule, "a", (now, at(due)), trusted, costs)
    };
    assert_eq!(of(&night, false, false), NextLook::Wait(MAX_RETRY));
    assert_eq!(of(&night, true, true), NextLook::Wait(MAX_RETRY));
    let own = UpdateSchedule {
        trusts_clock: true,
        ..night
    };
    assert_eq!(of(&own, false, false), NextLook::Look(THURSDAY + start));
    assert_eq!(of(&own, true, true), NextLook::Wait(MAX_RETRY));
    // One look a window; a failed one is repeated at growing pauses.
    let mut mono = now;
    for pause in [60, 120, 240, 480, 960, 1800, 1800] {
        looks.record_look_end(THURSDAY + start, true, mono);
        assert_eq!(ask(&looks, mono, due), NextLook::Wait(secs(pause)));
        mono = mono + secs(pause);
        assert_eq!(ask(&looks, mono, due), NextLook::Look(THURSDAY + start));
    }
    looks.record_look_end(THURSDAY + start, false, mono);
    assert_eq!(ask(&looks, mono, due), NextLook::Wait(MAX_WAIT));
    let day = 24 * HOUR;
    assert_eq!(ask(&looks, mono, day + due - 1), NextLook::Wait(secs(1)));
    let next = NextLook::Look(THURSDAY + day + start);
    assert_eq!(ask(&looks, mono, day + due), next);
    looks.record_look_end(THURSDAY + day + start, true, mono);
    assert_eq!(
        ask(&looks, mono, day + due),
        NextLook::Wait(RETRY),
        "short again"
    );
    looks.record_look_end(THURSDAY + day + start, false, mono);
    // After the clock was set back there is one more look.
    assert_eq!(
        ask(&looks, mono + RETRY, due),
        NextLook::Look(THURSDAY + start)
    );
    for (now, next) in [
        (0, due),
        (due - 1, due),
        (due, day + due),
        (23 * HOUR, day + due),
    ] {
        let found = night.next_look_time_s("a", at(now));
        assert_eq!(found, Some(THURSDAY + next), "{now}");
    }
    let never = schedule(window(0, 0, 24), 0);
    assert_eq!(never.next_look_time_s("a", at(0)), None);
    let found = looks.next_step(&never, "a", (mono + RETRY, at(due)), true, false);
    assert_eq!(found, NextLook::Wait(MAX_WAIT));
}

#[test]
fn nodes_are_spread_by_their_names() {
    // UPD-07
    let spread = schedule(window(EVERY_DAY, 2, 4), 10_000);
    let names: Vec<String> = (0..1000).map(|n| format!("board-{n}")).collect();
    let mut tenths = [0; 10];
    for name in &names {
        let moment = spread.look_offset_s(name);
        assert_eq!(moment, spread.look_offset_s(name));
        tenths[usize::try_from(moment / 1000).expect("within")] += 1;
    }
    assert!(tenths.iter().all(|n| (60..140).contains(n)), "{tenths:?}");
    for spread_s in [0, 1] {
        let at_once = schedule(window(EVERY_DAY, 2, 4), spread_s);
        assert_eq!(at_once.look_offset_s("a"), 0);
    }
    let of = |share| {
        names
            .iter()
            .filter(move |name| is_node_in_share(name, share))
    };
    assert_eq!((of(0).count(), of(100).count()), (0, 1000));
    let tenth = of(10).count();
    assert!((60..140).contains(&tenth), "{tenth}");
    for share in 1..=100 {
        let before: Vec<_> = of(share - 1).collect();
        assert!(before.iter().all(|name| is_node_in_share(name, share)));
    }
    // An early place in the fleet is no early moment in the window.
    let early = of(10)
        .filter(|name| spread.look_offset_s(name) < 5000)
        .count();
    assert!((tenth / 4..tenth * 3 / 4).contains(&early), "{early}");
}

#[test]
fn what_holds_an_update_up() {
    // UPD-07 PKG-26 SVC-15 METER-02
    let night = schedule(window(EVERY_DAY, 2, 4), 0);
    let well = UpdateCircumstances {
        wall: at(3 * HOUR),
        trusted: true,
        ..UpdateCircumstances::default()
    };
    assert_eq!(check_may_begin(&night, &well), Ok(()));
    for (now, why) in [
        (
            UpdateCircumstances {
                trusted: false,
                ..well
            },
            PostponeReason::Clock,
        ),
        (
            UpdateCircumstances {
                wall: at(2 * HOUR - 1),
                ..well
            },
            PostponeReason::Window,
        ),
        (
            UpdateCircumstances {
                wall: at(6 * HOUR),
                ..well
            },
            PostponeReason::Window,
        ),
        (
            UpdateCircumstances {
                costs: true,
                ..well
            },
            PostponeReason::Link,
        ),
        (
            UpdateCircumstances {
                waits: true,
                ..well
            },
            PostponeReason::Budget,
        ),
        (
            UpdateCircumstances {
                disk_pressure: true,
                ..well
            },
            PostponeReason::DiskPressure,
        ),
        (
            UpdateCircumstances { moving: 2, ..well },
            PostponeReason::Pods(2),
        ),
    ] {
        assert_eq!(check_may_begin(&night, &now), Err(why), "{now:?}");
    }
    let own = UpdateSchedule {
        trusts_clock: true,
        ..night
    };
    let untrusted = UpdateCircumstances {
        trusted: false,
        ..well
    };
    assert_eq!(check_may_begin(&own, &untrusted), Ok(()));
}

#[test]
fn pods_on_their_way() {
    // UPD-07
    let now = at(HOUR);
    let ago = |seconds: i64| Some(at(HOUR - seconds));
    for (name, pod, moving) in [
        (
            "rests",
            PodTransition {
                started: ago(1),
                ..PodTransition::default()
            },
            false,
        ),
        (
            "starts",
            PodTransition {
                started: ago(SETTLE_S - 1),
                is_starting: true,
                ends: None,
            },
            true,
        ),
        (
            "hangs",
            PodTransition {
                started: ago(SETTLE_S),
                is_starting: true,
                ends: None,
            },
            false,
        ),
        (
            "waits for a device",
            PodTransition {
                started: None,
                is_starting: true,
                ends: None,
            },
            false,
        ),
        (
            "ends",
            PodTransition {
                started: ago(9999),
                is_starting: false,
                ends: ago(-30),
            },
            true,
        ),
        (
            "is late",
            PodTransition {
                started: ago(9999),
                is_starting: false,
                ends: ago(SETTLE_S - 1),
            },
            true,
        ),
        (
            "does not end",
            PodTransition {
                started: ago(9999),
                is_starting: false,
                ends: ago(SETTLE_S),
            },
            false,
        ),
        (
            "began when the clock was wrong",
            PodTransition {
                started: ago(-SETTLE_S),
                is_starting: true,
                ends: None,
            },
            false,
        ),
        (
            "ends by a clock that was wrong",
            PodTransition {
                started: ago(9999),
                is_starting: false,
                ends: ago(-SETTLE_S),
            },
            false,
        ),
    ] {
        assert_eq!(pod.is_moving(now), moving, "{name}");
    }
}

const OFFER: &str = r#"{"name": "picolet", "version": "0.2.0", "arch": "armv7", "size": 5, "serial": 7,
    "sha256": "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", "later": []}"#;

fn offer() -> UpdateOffer {
    UpdateOffer::parse(OFFER.as_bytes()).expect("an offer")
}

#[test]
fn channel_files() {
    // UPD-01
    let found = offer();
    assert_eq!((found.serial, found.size, found.share), (7, 5, 100));
    assert_eq!(found.tarball_directory(), "picolet-0.2.0-armv7");
    assert_eq!(found.url, None);
    let whole = OFFER.replace("\"later\": []", r#""url": "a/b", "share": 0"#);
    let found = UpdateOffer::parse(whole.as_bytes()).expect("an offer");
    assert_eq!((found.url.as_deref(), found.share), (Some("a/b"), 0));
    for (from, to, says) in [
        (r#""picolet""#, r#""kubelet""#, "its name cannot be right"),
        (r#""0.2.0""#, r#""""#, "its version cannot be right"),
        (r#""0.2.0""#, r#""../x""#, "its version cannot be right"),
        (r#""armv7""#, r#""a/b""#, "its arch cannot be right"),
        (r#""size": 5"#, r#""size": 0"#, "its size cannot be right"),
        (
            r#""size": 5"#,
            r#""size": 67108865"#,
            "its size cannot be right",
        ),
        (
            r#""serial": 7"#,
            r#""serial": 0"#,
            "its serial cannot be right",
        ),
        (
            r#""serial": 7"#,
            r#""serial": -1"#,
            "it is not a channel file",
        ),
        ("cdef\"", "cdeF\"", "its sha256 cannot be right"),
        ("cdef\"", "cde\"", "its sha256 cannot be right"),
        (
            r#""later": []"#,
            r#""share": 101"#,
            "its share cannot be right",
        ),
        (r#""share": 100,"#, "", ""),
        ("\"serial\": 7,", "", "it is not a channel file"),
        (
            r#""later": []"#,
            r#""expires": "in 90 days""#,
            "it is not a channel file",
        ),
        ("{", "", "it is not a channel file"),
    ] {
        match UpdateOffer::parse(OFFER.replace(from, to).as_bytes()) {
            Ok(_) => assert!(says.is_empty(), "{to}"),
            Err(e) => assert!(e.to_string().starts_with(says), "{to}: {e}"),
        }
    }
}

#[test]
fn channel_files_expire_by_a_clock_that_is_right() {
    // UPD-01
    let time = |text: &str| WallTime::parse(text).expect("a time");
    let expires = "2026-06-01T02:00:00+02:00";
    let text = OFFER.replace("\"later\": []", &format!("\"expires\": {expires:?}"));
    let ends = UpdateOffer::parse(text.as_bytes()).expect("an offer");
    assert_eq!(offer().expires, None, "of a release before");
    for (now, trusted, expired) in [
        ("2026-05-31T23:59:59Z", true, false),
        ("2026-06-01T00:00:00Z", true, true),
        ("2099-01-01T00:00:00Z", true, true),
        ("2099-01-01T00:00:00Z", false, false),
        ("1970-01-01T00:00:00Z", false, false),
        ("1970-01-01T00:00:00Z", true, false),
    ] {
        let found = ends.expiry_if_passed(time(now), trusted);
        assert_eq!(found, expired.then(|| time(expires)), "{now} {trusted}");
        assert_eq!(offer().expiry_if_passed(time(now), trusted), None, "{now}");
    }
}

#[test]
fn verdicts() {
    // UPD-01 UPD-06 PKG-26
    let mut memory = UpdateMemory {
        committed: 7,
        sum: "ab".into(),
        barred: [9].into(),
        ..UpdateMemory::default()
    };
    let name = "board-1";
    let last_out = (0..100).rev().find(|share| !is_node_in_share(name, *share));
    let last_out = last_out.expect("it is not in every share");
    let judged = |memory: &UpdateMemory, serial, arch: &str, share, asked, force| {
        let offer = UpdateOffer {
            serial,
            share,
            ..offer()
        };
        let installed = "ab";
        let node = UpdatingNode {
            name,
            arch,
            memory,
            installed,
        };
        judge_offer(&offer, node, asked, force)
    };
    let lower = OfferVerdict::Refuse(OfferRefusal::Lower {
        serial: 6,
        committed: 7,
    });
    let barred = OfferVerdict::Refuse(OfferRefusal::Barred(9));
    let arch = OfferVerdict::Refuse(OfferRefusal::Arch {
        serial: 8,
        arch: "armv7".into(),
        own: "armv6".into(),
    });
    for (serial, own, share, asked, force, expected) in [
        (8, "armv7", 100, false, false, OfferVerdict::Take),
        (7, "armv7", 100, false, false, OfferVerdict::Have),
        (7, "armv7", 100, true, true, OfferVerdict::Take),
        (6, "armv7", 100, false, false, lower.clone()),
        (6, "armv7", 100, true, false, lower),
        (6, "armv7", 100, true, true, OfferVerdict::Take),
        (9, "armv7", 100, false, false, barred.clone()),
        (9, "armv7", 100, true, false, barred),
        (9, "armv7", 100, true, true, OfferVerdict::Take),
        (8, "armv6", 100, false, false, arch.clone()),
        (8, "armv6", 100, true, true, arch),
        (8, "armv7", 0, false, false, OfferVerdict::NotInShare),
        (8, "armv7", last_out, false, false, OfferVerdict::NotInShare),
        (8, "armv7", last_out + 1, false, false, OfferVerdict::Take),
        (8, "armv7", 0, true, false, OfferVerdict::Take),
    ] {
        let found = judged(&memory, serial, own, share, asked, force);
        assert_eq!(found, expected, "{serial} {own} {share} {asked} {force}");
    }
    // Another program is in place: an earlier one, that of an image, or one put there by hand.
    memory.sum = "cd".into();
    let found = judged(&memory, 7, "armv7", 100, false, false);
    assert_eq!(found, OfferVerdict::Take);
    // An offer whose tarball has another SHA-256 is not fetched again.
    memory.wrong = offer().sha256;
    for (asked, force, expected) in [
        (false, false, OfferVerdict::Refuse(OfferRefusal::Wrong(8))),
        (true, false, OfferVerdict::Refuse(OfferRefusal::Wrong(8))),
        (true, true, OfferVerdict::Take),
    ] {
        let found = judged(&memory, 8, "armv7", 100, asked, force);
        assert_eq!(found, expected, "{asked} {force}");
    }
}

#[test]
fn what_is_remembered() {
    // UPD-04 UPD-06
    let trying = |serial, sum: &str| {
        let sum = sum.into();
        Some(UpdateAttempt { serial, sum })
    };
    let mut memory = UpdateMemory {
        committed: 3,
        sum: "01".into(),
        trying: trying(4, "ab"),
        barred: [1, 2].into(),
        wrong: "ef".into(),
    };
    let text = memory.to_string();
    assert_eq!(
        text,
        "committed 3\nsum 01\ntrying 4 ab\nbarred 1\nbarred 2\nwrong ef\n"
    );
    assert_eq!(format!("{text}later x\n").parse(), Ok(memory.clone()));
    assert_eq!("".parse(), Ok(UpdateMemory::default()));
    for wrong in [
        "committed",
        "committed x",
        "barred -1",
        "trying 4",
        "trying x y",
    ] {
        assert!(wrong.parse::<UpdateMemory>().is_err(), "{wrong}");
    }
    // The program stayed, was put back, or never came into place.
    assert!(memory.settle_attempt("ab", false));
    assert_eq!((memory.committed, &*memory.barred), (4, &[1, 2][..]));
    assert_eq!(memory.sum, "ab");
    assert!(!memory.settle_attempt("ab", false), "it is settled");
    memory.trying = trying(5, "cd");
    assert!(memory.settle_attempt("ab", true));
    assert_eq!((memory.committed, &*memory.barred), (4, &[1, 2, 5][..]));
    memory.trying = trying(6, "ef");
    assert!(memory.settle_attempt("ab", false));
    assert_eq!((memory.committed, &*memory.barred), (4, &[1, 2, 5][..]));
    // A forced retry succeeds: the serial leaves the list, although `was_put_back` is still true.
    memory.trying = trying(5, "cd");
    assert!(memory.settle_attempt("cd", true));
    assert_eq!((memory.committed, &*memory.barred), (5, &[1, 2][..]));
    for serial in 10..20 {
        memory.trying = trying(serial, "x");
        memory.settle_attempt("cd", true);
    }
    assert_eq!(memory.barred, [12, 13, 14, 15, 16, 17, 18, 19]);
    memory.trying = trying(19, "x");
    memory.settle_attempt("cd", true);
    assert_eq!(memory.barred.len(), MAX_BARRED, "each is there once");
    memory.trying = trying(u64::MAX, &"f".repeat(64));
    memory.barred = [u64::MAX; MAX_BARRED].into();
    memory.wrong = "f".repeat(64);
    memory.sum = "f".repeat(64);
    assert!(memory.to_string().len() as u64 <= MAX_MEMORY_BYTES);
}

#[test]
fn keys() {
    // UPD-01
    let key = [DER_HEAD.as_slice(), &[7; 32]].concat();
    assert_eq!(parse_public_key(&STANDARD.encode(&key)), Some([7; 32]));
    for wrong in [&key[..43], &key[1..], &[]] {
        assert_eq!(parse_public_key(&STANDARD.encode(wrong)), None);
    }
    assert_eq!(parse_public_key("\u{e9}"), None);
}
