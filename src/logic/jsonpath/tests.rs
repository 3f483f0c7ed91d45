use serde_json::json;

use super::*;

fn rendered(template: &str, data: &Value) -> Result<String, String> {
    Ok(Template::parse(template)?.render(data)?)
}

/// Answers of kubectl.
#[test]
fn templates() {
    // GET-03
    let nodes = json!({
        "kind": "List",
        "items": [
            {
                "metadata": {"name": "a", "labels": {"kubernetes.io/hostname": "h1"}},
                "status": {"capacity": {"cpu": "4"}, "ready": true, "n": 3,
                    "addresses": [{"type": "X", "address": "1.1"}]},
            },
            {
                "metadata": {"name": "b"},
                "status": {"capacity": {"cpu": "8"}, "ready": false, "n": 10,
                    "addresses": [{"type": "X", "address": "2.2"}, {"type": "Y", "address": "3.3"}]},
            },
        ],
        "users": [{"name": "me", "user": {}}, {"name": "e2e", "user": {"password": "p"}}],
        "five": [0, 1, 2, 3, 4],
        "words": ["one", "two", "a)b"],
        "none": [],
        "null": null,
        "half": 1.5,
    });
    for (template, expected) in [
        ("", ""),
        ("hello", "hello"),
        (r"hello\n", r"hello\n"),
        (".kind", ".kind"),
        ("{.kind}", "List"),
        ("{ .kind }", "List"),
        ("{$.kind}-{@.kind}", "List-List"),
        ("{.missing}", ""),
        ("before-{.missing}after", "before-after"),
        ("{.kind.deeper.still}", ""),
        ("{.half} {.null}", "1.5 null"),
        ("{.items[*].metadata.name}", "a b"),
        (
            "{.items[*].metadata.labels}",
            r#"{"kubernetes.io/hostname":"h1"}"#,
        ),
        ("{.items[0].status.capacity}", r#"{"cpu":"4"}"#),
        ("{.items[0].status.ready} {.items[0].status.n}", "true 3"),
        // Keys with dots, in both forms.
        (r"{.items[0].metadata.labels.kubernetes\.io/hostname}", "h1"),
        (
            r"{.items[0].metadata.labels['kubernetes\.io/hostname']}",
            "h1",
        ),
        ("{['kind']}{.items[1]['metadata.name']}", "Listb"),
        (
            "{.items[*]['metadata.name', 'status.capacity']}",
            r#"a b {"cpu":"4"} {"cpu":"8"}"#,
        ),
        // Slices and unions.
        ("{.five}", "[0,1,2,3,4]"),
        ("{.five[1]} {.five[-1]} {.five[-5]}", "1 4 0"),
        (
            "{.five[1:3]}|{.five[:2]}|{.five[3:]}|{.five[-2:]}",
            "1 2|0 1|3 4|3 4",
        ),
        (
            "{.five[0:-1]}|{.five[::2]}|{.five[1:4:2]}|{.five[0:5:9]}",
            "0 1 2 3|0 2 4|1 3|0",
        ),
        ("{.five[2:2]}|{.five[9:9]}|{.none[*]}", "||"),
        ("{.five[1,3,4]}|{.five[0, 1:3]}", "1 3 4|0 1 2"),
        ("{.five.*}", "0 1 2 3 4"),
        ("{.users[1].user.*}", "p"),
        ("{.null[*]}", ""),
        // Recursion.
        ("{..address}", "1.1 2.2 3.3"),
        ("{...address}", "1.1 2.2 3.3"),
        ("{.items..address}{.items[1]..cpu}", "1.1 2.2 3.38"),
        ("{.words..}", r#"["one","two","a)b"] one two a)b"#),
        // Filters.
        (r#"{.users[?(@.name=="e2e")].user.password}"#, "p"),
        (r#"{.users[?(.name!='e2e')].name}"#, "me"),
        (
            r#"{.items[?(@.metadata.labels.kubernetes\.io/hostname=="h1")].metadata.name}"#,
            "a",
        ),
        ("{.items[?(@.status.ready==true)].metadata.name}", "a"),
        ("{.items[?(@..ready!=true)].metadata.name}", "b"),
        ("{.items[?(@.status.n>=4)].metadata.name}", "b"),
        ("{.items[?(@.metadata.labels)].metadata.name}", "a"),
        (
            "{.five[?(@<2)]}|{.five[?(@ > 1.5)]}|{.five[?(@<=-1)]}",
            "0 1|2 3 4|",
        ),
        ("{.words[?(@=='a)b')]}{.words[?(@>'p')]}", "a)btwo"),
        (
            "{.items[*].status.addresses[?(@.type==\"X\")].address}",
            "1.1 2.2",
        ),
        // Texts.
        (r#"{"{"}{'}'}"#, "{}"),
        (r#"{"\t\n\"\\"}{'it\'s'}"#, "\t\n\"\\it's"),
        (r#"{.kind "x"}{3}{-2.5}{true}"#, "x3-2.5true"),
        // Ranges.
        (
            "{range .items[*]}{.metadata.name}, {end}{.kind}",
            "a, b, List",
        ),
        (r#"{range .items[*]}{.metadata.name}{"\t"}{end}"#, "a\tb\t"),
        (
            "{range .items[*]}[{.metadata.name}, {.status.capacity.cpu}] {end}",
            "[a, 4] [b, 8] ",
        ),
        (
            "{range .items[*]}{.metadata.name}:{range .status.addresses[*]}{.address},{end}+{end}.",
            "a:1.1,+b:2.2,3.3,+.",
        ),
        ("{range .none[*]}x{range .y[*]}z{end}{end}.", "."),
        (
            r#"{range .items[?(.status.ready==true)]}{.metadata.name}{" is\n"}{end}"#,
            "a is\n",
        ),
    ] {
        assert_eq!(
            rendered(template, &nodes).as_deref(),
            Ok(expected),
            "{template}"
        );
    }
    assert_eq!(rendered("{.}", &json!([1])).as_deref(), Ok("[1]"));
    assert_eq!(
        rendered("{[?(@<5)]}", &json!([2, 6, 3])).as_deref(),
        Ok("2 3")
    );
    assert_eq!(
        rendered("{.}{\"\\u00e9\"}", &json!(["<&>\u{2028}"])).as_deref(),
        Ok("[\"\\u003c\\u0026\\u003e\\u2028\"]é")
    );
    let empty_beside = json!({"x": [{"y": []}, {"y": [1]}]});
    assert_eq!(rendered("{.x[*].y[*]}", &empty_beside).as_deref(), Ok("1"));
}

#[test]
fn wrong_templates() {
    // GET-03
    let data = json!({"five": [0, 1, 2, 3, 4], "map": {"a": 1}});
    for (template, says) in [
        ("{", "unclosed action"),
        ("{.x", "unclosed action"),
        ("{.x\n}", "unclosed action"),
        ("{hello}", "unrecognized identifier hello"),
        ("{.x|y}{|}", "unrecognized character in action: U+007C '|'"),
        ("{end}", "not in range, nothing to end"),
        (
            "{range .five[*]}{@}{end}{end}",
            "not in range, nothing to end",
        ),
        ("{[0}", "unterminated array"),
        ("{.five[x]}", "invalid array index x"),
        ("{.five[0:1:1:1]}", "invalid array index 0:1:1:1"),
        ("{.five[\"a\"]}", "invalid array index \"a\""),
        ("{.five[5]}", "array index out of bounds: index 5, length 5"),
        (
            "{.five[-6]}",
            "array index out of bounds: index -1, length 5",
        ),
        (
            "{.five[0:9]}",
            "array index out of bounds: index 8, length 5",
        ),
        (
            "{.five[3:1]}",
            "starting index 3 is greater than ending index 1",
        ),
        (
            "{.five[-1:0]}",
            "starting index 4 is greater than ending index 0",
        ),
        ("{.five[0:5:0]}", "step must be > 0"),
        ("{.five[0:5:-1]}", "step must be > 0"),
        ("{.map[0]}", "a map is not an array"),
        ("{.map.a[?(@.x)]}", "a value is not an array"),
        ("{....x}", "invalid multiple recursive descent"),
        ("{.five[?(@.x==1}", "unterminated filter"),
        ("{.five[?(@.x==1)}", "unclosed array expect ]"),
        ("{.five[?(@<>1)]}", "filter operator <> is not supported"),
        ("{.five[?(@=~'a')]}", "filter operator =~ is not supported"),
        ("{.five[?(==1)]}", "invalid filter ==1"),
        ("{.five[?(@==)]}", "invalid filter @=="),
        ("{.five[?(@=='1')]}", "incompatible types for =="),
        ("{[?(@.*==1)]}", "a map is not an array"),
        ("{'x}", "unterminated quoted string"),
        ("{'x\n'}", "unterminated quoted string"),
        (r"{'\q'}", "invalid syntax"),
        ("{1.2.3}", "cannot parse number 1.2.3"),
    ] {
        let error = rendered(template, &data).expect_err(template);
        assert!(
            error.starts_with(says) || error.ends_with(says),
            "{template}: {error}"
        );
    }
    let two = json!([{"a": 1, "b": 2}]);
    let error = rendered("{[?(@.*==1)]}", &two).expect_err("two values");
    assert_eq!(error, "can only compare one element at a time");
}

#[test]
fn limits() {
    // GET-03
    let data = json!(1);
    let loops = "{range ['', '', '']}".repeat(MAX_RANGES);
    assert!(rendered(&loops, &data).is_err_and(|e| e.starts_with("finds more than")));
    let more = format!("{loops}{{range .x}}");
    assert!(rendered(&more, &data).is_err_and(|e| e.starts_with("more than")));
    let long = "x".repeat(MAX_TEMPLATE_BYTES + 1);
    assert!(rendered(&long, &data).is_err_and(|e| e.starts_with("longer than")));
    let wide = json!({"x": "y".repeat(MAX_OUTPUT_BYTES / 2)});
    assert!(rendered("{.x}{.x}{.x}", &wide).is_err_and(|e| e.starts_with("prints more than")));
}

#[test]
fn any_text_is_read_or_refused() {
    // GET-03
    let data = json!({"a": [{"b": "c", "d": [1, 2]}, {"b": null}]});
    let words = [
        "{", "}", "[", "]", "[?(", ")]", ".", "..", "*", "a", "b", "'", "\"", "\\", ",", ":", "-",
        "1", "==", "range ", "end", "@", " ", "\n", "ä", "true",
    ];
    let mut state: u32 = 1;
    let mut read = 0;
    for _ in 0..20_000 {
        let mut text = String::from("{");
        for _ in 0..10 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            text.push_str(words[(state >> 16) as usize % words.len()]);
        }
        read += usize::from(rendered(&text, &data).is_ok());
    }
    assert!(read > 50, "{read}");
}

#[test]
fn paths() {
    // GET-04
    let floats = [1.0, 1.5e-7, 1e21, 123_456_789.5, 0.0001, -2.5e100];
    let data = json!({"a": {"b": [1, {"c": null}]}, "s": "x", "f": floats});
    for (path, expected) in [
        ("a.b[0]", "1"),
        (".s", "x"),
        ("{s}", "x"),
        ("{.a.b}", "[1 map[c:<nil>]]"),
        ("a.missing", ""),
        ("f[0]", "1"),
        ("f[1]", "1.5e-07"),
        ("f[2]", "1e+21"),
        ("f[3]", "123456789.5"),
        ("f[4]", "0.0001"),
        ("f[5]", "-2.5e+100"),
    ] {
        let path = Template::parse_path(path).expect(path);
        let mut text = String::new();
        for value in path.find(&data).expect("values") {
            push_go_text(value, &mut text);
        }
        assert_eq!(text, expected);
    }
    for path in ["", ".", "{}", "{.a}{.b}", "{.a", "a}"] {
        let error = Template::parse_path(path).expect_err(path);
        assert!(error.0.starts_with("unexpected path"), "{error}");
    }
}

#[test]
fn order_of_sort_keys() {
    // GET-05
    for (less, more) in [
        (json!(2), json!(10)),
        (json!(1.5), json!(2)),
        (json!(false), json!(true)),
        (json!("a10"), json!("a2")),
        (json!("a"), json!("a1")),
        (json!("500m"), json!("1")),
        (json!("900Mi"), json!("1Gi")),
        (json!("2024-01-02T00:00:00Z"), json!("2024-01-10T00:00:00Z")),
        (json!("ä"), json!("ö")),
        (json!(null), json!(false)),
        (json!(2), json!("1")),
        (json!("10"), json!("1x")),
        (json!("x"), json!([])),
    ] {
        assert_eq!(
            compare_sort_keys(&less, &more),
            Ordering::Less,
            "{less} {more}"
        );
        assert_eq!(
            compare_sort_keys(&more, &less),
            Ordering::Greater,
            "{more} {less}"
        );
    }
    // A sort may panic if the order of some keys contradicts that of others.
    let keys = ["1k", "5", "3x", "10", "2b", "v1", "", "1e3", "01", "1.5"].map(Value::from);
    let keys = keys
        .into_iter()
        .chain([json!(1), json!(2), json!(true), json!(null), json!({})]);
    let keys: Vec<Value> = keys.collect();
    for (a, b) in keys.iter().flat_map(|a| keys.iter().map(move |b| (a, b))) {
        let order = compare_sort_keys(a, b);
        assert_eq!(order, compare_sort_keys(b, a).reverse(), "{a} {b}");
        for c in &keys {
            if order.is_le() && compare_sort_keys(b, c).is_le() {
                assert!(compare_sort_keys(a, c).is_le(), "{a} {b} {c}");
            }
        }
    }
}
