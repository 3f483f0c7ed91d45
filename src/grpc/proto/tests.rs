use std::collections::BTreeMap;

use super::{encode::put_length_before, *};

enumeration! {
    /// A state.
    struct State {
        READY = 0,
        NOT_READY = 1,
    }
}

message! {
    struct Inner {
        1 name: String,
        2 nodes: Vec<Inner>,
    }
}

message! {
    struct All {
        1 int: i32,
        2 long: i64,
        3 unsigned: u32,
        4 large: u64,
        5 zigzag: i32 as Zigzag,
        6 zigzag_long: i64 as Zigzag,
        7 fixed: u32 as Fixed32,
        8 fixed_long: u64 as Fixed64,
        9 signed_fixed: i32 as Fixed32,
        10 signed_fixed_long: i64 as Fixed64,
        11 flag: bool,
        12 float: f32,
        13 double: f64,
        14 text: String,
        15 bytes: Vec<u8>,
        16 state: State,
        17 inner: Option<Inner>,
        18 numbers: Vec<i32>,
        19 deltas: Vec<i64> as Zigzag,
        20 texts: Vec<String>,
        21 pieces: Vec<Vec<u8>>,
        22 inners: Vec<Inner>,
        23 labels: BTreeMap<String, String>,
        24 by_number: BTreeMap<u32, Option<Inner>>,
        25 maybe: Option<i64>,
        26 maybe_text: Option<String>,
        27 states: Vec<State>,
        100 path: Option<String>,
        101 handle: Option<u64>,
        102 other: Option<Inner>,
    } oneof [100 path, 101 handle, 102 other]
}

fn read<M: Message + Default>(bytes: &[u8]) -> Result<M, Error> {
    let mut message = M::default();
    decode(&mut message, bytes, Limits::default()).map(|()| message)
}

fn inner(name: &str) -> Inner {
    Inner {
        name: name.into(),
        nodes: Vec::new(),
    }
}

#[test]
fn each_kind_is_written_as_the_standard_has_it() {
    type Row = (&'static str, fn(&mut All), &'static [u8]);
    let rows: &[Row] = &[
        ("nothing", |_| {}, &[]),
        ("int32", |m| m.int = 150, &[8, 0x96, 1]),
        (
            "below zero",
            |m| m.int = -2,
            &[8, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
        ),
        (
            "int64",
            |m| m.long = i64::MIN,
            &[
                0x10, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1,
            ],
        ),
        (
            "uint32",
            |m| m.unsigned = u32::MAX,
            &[0x18, 0xff, 0xff, 0xff, 0xff, 0xf],
        ),
        (
            "uint64",
            |m| m.large = u64::MAX,
            &[
                0x20, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1,
            ],
        ),
        (
            "sint32",
            |m| m.zigzag = i32::MIN,
            &[0x28, 0xff, 0xff, 0xff, 0xff, 0xf],
        ),
        (
            "sint64",
            |m| m.zigzag_long = 0x7fff_ffff,
            &[0x30, 0xfe, 0xff, 0xff, 0xff, 0xf],
        ),
        ("fixed32", |m| m.fixed = 1, &[0x3d, 1, 0, 0, 0]),
        (
            "fixed64",
            |m| m.fixed_long = 1,
            &[0x41, 1, 0, 0, 0, 0, 0, 0, 0],
        ),
        (
            "sfixed32",
            |m| m.signed_fixed = -2,
            &[0x4d, 0xfe, 0xff, 0xff, 0xff],
        ),
        (
            "sfixed64",
            |m| m.signed_fixed_long = -2,
            &[0x51, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        ),
        ("bool", |m| m.flag = true, &[0x58, 1]),
        ("float", |m| m.float = 1.0, &[0x65, 0, 0, 0x80, 0x3f]),
        (
            "double",
            |m| m.double = -0.0,
            &[0x69, 0, 0, 0, 0, 0, 0, 0, 0x80],
        ),
        ("string", |m| m.text = "testing".into(), b"\x72\x07testing"),
        ("bytes", |m| m.bytes = vec![0xff], &[0x7a, 1, 0xff]),
        ("enumeration", |m| m.state = State::NOT_READY, &[0x80, 1, 1]),
        ("unknown value", |m| m.state = State(7), &[0x80, 1, 7]),
        (
            "empty message",
            |m| m.inner = Some(Inner::default()),
            &[0x8a, 1, 0],
        ),
        (
            "message",
            |m| m.inner = Some(inner("a")),
            &[0x8a, 1, 3, 10, 1, b'a'],
        ),
        (
            "packed",
            |m| m.numbers = vec![3, 270, 86942],
            b"\x92\x01\x06\x03\x8e\x02\x9e\xa7\x05",
        ),
        (
            "packed zigzag",
            |m| m.deltas = vec![0, -1],
            &[0x9a, 1, 2, 0, 1],
        ),
        (
            "strings",
            |m| m.texts = vec![String::new(), "a".into()],
            b"\xa2\x01\0\xa2\x01\x01a",
        ),
        ("pieces", |m| m.pieces = vec![vec![]], &[0xaa, 1, 0]),
        (
            "messages",
            |m| m.inners = vec![inner(""), inner("a")],
            b"\xb2\x01\0\xb2\x01\x03\x0a\x01a",
        ),
        (
            "map",
            |m| m.labels = [("a".into(), "b".into()), ("c".into(), String::new())].into(),
            b"\xba\x01\x06\x0a\x01a\x12\x01b\xba\x01\x03\x0a\x01c",
        ),
        (
            "map of messages",
            |m| m.by_number = [(0, Some(inner(""))), (1, Some(inner("a")))].into(),
            b"\xc2\x01\x02\x12\0\xc2\x01\x07\x08\x01\x12\x03\x0a\x01a",
        ),
        ("a zero that is there", |m| m.maybe = Some(0), &[0xc8, 1, 0]),
        (
            "a text that is there",
            |m| m.maybe_text = Some(String::new()),
            &[0xd2, 1, 0],
        ),
        (
            "states",
            |m| m.states = vec![State::READY, State(9)],
            &[0xda, 1, 2, 0, 9],
        ),
        ("one of", |m| m.handle = Some(5), &[0xa8, 6, 5]),
    ];
    for (name, set, bytes) in rows {
        let mut message = All::default();
        set(&mut message);
        assert_eq!(encode(&mut message), *bytes, "{name}");
        let again = read::<All>(bytes).expect(name);
        assert_eq!(again, message, "{name}");
    }
}

#[test]
fn all_at_once() {
    let mut message = All::default();
    let parts: Vec<u8> = [
        &[8, 0x96, 1][..],
        b"\x72\x07testing\x8a\x01\x03\x0a\x01a",
        b"\xba\x01\x06\x0a\x01a\x12\x01b\xba\x01\x06\x0a\x01c\x12\x01d",
    ]
    .concat();
    decode(&mut message, &parts, Limits::default()).expect("a message");
    assert_eq!(encode(&mut message), parts);
    let long = "x".repeat(300);
    message.inner = Some(Inner {
        name: long,
        nodes: vec![inner("y"); 100],
    });
    let bytes = encode(&mut message);
    assert_eq!(read::<All>(&bytes), Ok(message));
}

#[test]
fn what_readers_must_take() {
    for (name, bytes, want) in [
        (
            "the last counts",
            &[8, 1, 8, 2][..],
            All {
                int: 2,
                ..All::default()
            },
        ),
        (
            "unpacked",
            &[0x90, 1, 1, 0x90, 1, 2],
            All {
                numbers: vec![1, 2],
                ..All::default()
            },
        ),
        (
            "packed and not",
            &[0x92, 1, 2, 1, 2, 0x90, 1, 3],
            All {
                numbers: vec![1, 2, 3],
                ..All::default()
            },
        ),
        ("a zero", &[8, 0], All::default()),
        (
            "cut to its width",
            &[8, 0x81, 0x80, 0x80, 0x80, 0x10],
            All {
                int: 1,
                ..All::default()
            },
        ),
        (
            "messages merge",
            b"\x8a\x01\x03\x0a\x01a\x8a\x01\x02\x12\0",
            All {
                inner: Some(Inner {
                    name: "a".into(),
                    nodes: vec![inner("")],
                }),
                ..All::default()
            },
        ),
        (
            "the last of an alternative",
            b"\xa2\x06\x01a\xa8\x06\x05\xb2\x06\0",
            All {
                other: Some(inner("")),
                ..All::default()
            },
        ),
        (
            "the same twice",
            b"\xa2\x06\x01a\xa2\x06\x01b",
            All {
                path: Some("b".into()),
                ..All::default()
            },
        ),
        (
            "unknown fields",
            &[
                0xf0, 1, 0x80, 1, 0xf2, 1, 2, 9, 9, 0xf5, 1, 1, 2, 3, 4, 0xf1, 1, 1, 2, 3, 4, 5, 6,
                7, 8, 8, 1,
            ],
            All {
                int: 1,
                ..All::default()
            },
        ),
        (
            "a key again",
            b"\xba\x01\x06\x0a\x01a\x12\x01b\xba\x01\x06\x12\x01c\x0a\x01a",
            All {
                labels: [("a".into(), "c".into())].into(),
                ..All::default()
            },
        ),
        (
            "a map's message that is not written",
            b"\xc2\x01\x02\x08\x01",
            All {
                by_number: [(1, Some(inner("")))].into(),
                ..All::default()
            },
        ),
    ] {
        assert_eq!(read::<All>(bytes), Ok(want), "{name}");
    }
}

#[test]
fn refused() {
    for (name, bytes, why) in [
        ("cut", &[8][..], Error::Cut),
        ("cut number", &[8, 0x80], Error::Cut),
        ("cut text", &[0x72, 2, b'a'], Error::Cut),
        ("cut fixed", &[0x3d, 0, 0, 0], Error::Cut),
        ("cut packed", &[0x92, 1, 1, 0x80], Error::Cut),
        ("cut unknown", &[0xf2, 1, 2, 9], Error::Cut),
        (
            "too long",
            &[
                0x72, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1,
            ],
            Error::Cut,
        ),
        (
            "11 bytes",
            &[
                8, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1,
            ],
            Error::Number,
        ),
        (
            "65 bits",
            &[8, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2],
            Error::Number,
        ),
        ("field 0", &[0, 0], Error::Number),
        (
            "large field",
            &[0x80, 0x80, 0x80, 0x80, 0x80, 1, 0],
            Error::Number,
        ),
        ("a group", &[0xf3, 1], Error::Type),
        ("a number as text", &[10, 0], Error::Type),
        ("a text as number", &[0x70, 0], Error::Type),
        ("a message as number", &[0x88, 1, 0], Error::Type),
        ("wrong width", &[0x39, 0, 0, 0, 0, 0, 0, 0, 0], Error::Type),
        ("bytes as text", &[0x72, 1, 0xff], Error::Text),
        ("inside", &[0x8a, 1, 3, 10, 1, 0xff], Error::Text),
    ] {
        assert_eq!(read::<All>(bytes), Err(why), "{name}");
    }
}

#[test]
fn limits() {
    // CRI-98
    let nested = |depth: usize| {
        let mut bytes = Vec::new();
        for _ in 1..depth {
            put_length_before(0, &mut bytes);
            bytes.insert(0, 0x12);
        }
        bytes
    };
    let few = Limits {
        depth: 3,
        entries: 5,
        bytes: 1000,
    };
    let read = |bytes: &[u8]| decode(&mut Inner::default(), bytes, few);
    let all = |bytes: &[u8]| decode(&mut All::default(), bytes, few);
    assert_eq!(read(&nested(3)), Ok(()));
    assert_eq!(read(&nested(4)), Err(Error::TooMuch));
    // Side by side is no depth.
    assert_eq!(read(&[0x12, 0].repeat(5)), Ok(()));
    assert_eq!(read(&[0x12, 0].repeat(6)), Err(Error::TooMuch));
    assert_eq!(all(&[0x92, 1, 6, 1, 1, 1, 1, 1, 1]), Err(Error::TooMuch));
    assert_eq!(all(&[0xa2, 1, 0].repeat(6)), Err(Error::TooMuch));
    assert_eq!(all(&[0xba, 1, 0].repeat(6)), Err(Error::TooMuch));
    // Two bytes stand for a message of many.
    let size = size_of::<All>();
    assert!(size > 200);
    let many = [0x12, 0].repeat(1 << 17);
    let tight = Limits {
        bytes: 1 << 20,
        ..Limits::default()
    };
    let mut grown = Inner::default();
    assert_eq!(decode(&mut grown, &many, tight), Err(Error::TooMuch));
    assert!(grown.nodes.len() * size_of::<Inner>() <= 1 << 20);
}

#[test]
fn nothing_that_comes_makes_it_fall() {
    let mut seed = 7_u64;
    let mut byte = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        seed.to_be_bytes()[0]
    };
    for _ in 0..5000 {
        let bytes: Vec<u8> = (0..byte() % 30).map(|_| byte()).collect();
        if let Ok(mut message) = read::<All>(&bytes) {
            // What was read is written, and read the same.
            let bytes = encode(&mut message);
            let mut again = read::<All>(&bytes).expect("its own");
            assert_eq!(encode(&mut again), bytes);
        }
    }
}
