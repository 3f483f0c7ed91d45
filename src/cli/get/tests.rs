use std::process::{Command, Stdio};

use serde_json::json;

use super::*;
use crate::{api::yaml::yaml_text, config::decode::parse_patch, logic::testing::Random};

#[test]
fn who_waits_for_an_image() {
    let status = |message: &str| json!({"state": {"waiting": {"message": message}}});
    let pulling = "Pulling image \"a:1\": fetching 1 of 2 MiB (50%), 0 of 1 layers";
    let after = format!("cannot reach x; {pulling}");
    let pod = json!({
        "metadata": {"name": "p"},
        "status": {
            "initContainerStatuses": [status(""), status(pulling)],
            "containerStatuses": [status(&after), status("no such thing"), {"state": {}}],
        },
    });
    assert_eq!(pull_progress_lines(&pod), [format!("pod/p: {pulling}")]);
    assert_eq!(
        pull_progress_lines(&json!({"metadata": {"name": "p"}})),
        [""; 0]
    );
}

fn get_with(flags: &[(&str, &str)]) -> GetCommand {
    let mut get = GetCommand::default();
    for (flag, value) in flags {
        get.read_flag(flag, (*value).to_owned()).expect(flag);
    }
    get
}

fn config_map(name: &str, labels: &Value, size: u32) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "n", "labels": labels},
        "data": {"key": "value"},
        "size": size,
    })
}

fn two_maps() -> Vec<Value> {
    vec![
        config_map("b", &json!({"app": "web", "a.io/tier": "front"}), 9),
        config_map("a", &Value::Null, 10),
    ]
}

#[test]
fn words_that_name_objects() {
    // GET-01
    let parsed = |line: &str| {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let all = parse_resources(&words, &KINDS, false).map_err(|e| e.to_string())?;
        let shown = all
            .iter()
            .map(|(kind, names)| format!("{}:{}", kind.names[0], names.join("+")));
        Ok::<_, String>(shown.collect::<Vec<_>>().join(" "))
    };
    for (line, expected) in [
        ("pods", "pods:"),
        ("pod a b", "pods:a+b"),
        ("pods,cm", "pods: configmaps:"),
        ("all,cm a", "pods:a configmaps:a"),
        ("pod/a cm/x po/b", "pods:a+b configmaps:x"),
        (
            "image/docker.io/library/x:1",
            "images:docker.io/library/x:1",
        ),
        (
            "image docker.io/library/x:1",
            "images:docker.io/library/x:1",
        ),
    ] {
        assert_eq!(parsed(line).as_deref(), Ok(expected), "{line}");
    }
    for line in ["pod/a b", "/a", "pod/"] {
        let error = parsed(line).expect_err(line);
        assert!(error.contains("expected TYPE/NAME"), "{error}");
    }
    let refused = |words: &[&str], has_namespace| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let error = parse_resources(&words, &KINDS, has_namespace).map(|_| ());
        error.expect_err("refused").to_string()
    };
    // CLI-02 CLI-03
    for (words, has_namespace, says) in [
        (&[][..], false, "you must say what to show: pods, images,"),
        (&["deploy"], false, "have a resource type \"deploy\"\nThese"),
        (&["pds"], false, "\"pds\", did you mean po"),
        (&["nodes,images"], true, "not in a namespace"),
    ] {
        let error = refused(words, has_namespace);
        assert!(error.contains(says), "{error}");
    }
    assert!(parse_resources(&["no,ev".to_owned()], &KINDS, true).is_ok());
}

#[test]
fn objects_by_name() {
    // GET-01
    let names = ["a", "x", "b", "y"].map(str::to_owned);
    let (items, missing) = choose_objects(two_maps(), &CONFIG_MAPS, &names);
    let found: Vec<&str> = items.iter().map(object_name).collect();
    assert_eq!(found, ["a", "b"]);
    assert_eq!(
        missing,
        ["x", "y"]
            .map(|name| format!("Error from server (NotFound): configmaps \"{name}\" not found"))
    );
    let image = json!({"id": "sha256:1", "repoTags": ["docker.io/library/x:1"]});
    let names: Vec<&str> = object_names(&image).collect();
    assert_eq!(names, ["docker.io/library/x:1", "sha256:1"]);
}

#[test]
fn tables_and_their_columns() {
    // GET-04 GET-06
    let kinds = [(&CONFIG_MAPS, two_maps()), (&SECRETS, vec![])];
    let wide = "custom-columns=N:.metadata.name,LABELS:metadata.labels,V:{.data.key},X:.x";
    for (flags, expected) in [
        (
            &[][..],
            "NAME   DATA   AGE\nb      1      <unknown>\na      1      <unknown>\n",
        ),
        (
            &[("no-headers", "true"), ("show-kind", "true")],
            "configmap/b   1     <unknown>\nconfigmap/a   1     <unknown>\n",
        ),
        (
            &[("label-columns", "app,a.io/tier"), ("show-labels", "true")],
            "NAME   DATA   AGE         APP   TIER    LABELS\n\
             b      1      <unknown>   web   front   a.io/tier=front,app=web\n\
             a      1      <unknown>                 <none>\n",
        ),
        (
            &[("output", wide)],
            "N   LABELS                           V       X\n\
             b   map[a.io/tier:front app:web]     value   <none>\n\
             a   <nil>                            value   <none>\n",
        ),
        (&[("output", "name")], "configmap/b\nconfigmap/a\n"),
        (
            &[("output", "jsonpath={.kind} {.items[*].size}")],
            "List 9 10",
        ),
    ] {
        let get = get_with(flags);
        let text = get.objects_text(&kinds, false).expect("text");
        let squeezed = |text: &str| {
            text.lines()
                .map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "))
                .collect::<Vec<_>>()
        };
        match flags {
            [("output", _)] => assert_eq!(squeezed(&text), squeezed(expected), "{flags:?}"),
            _ => assert_eq!(text, expected, "{flags:?}"),
        }
    }
    let both = [(&CONFIG_MAPS, two_maps()), (&SECRETS, two_maps())];
    let text = get_with(&[])
        .objects_text(&both, false)
        .expect("two tables");
    assert!(text.contains("\n\nNAME   TYPE   DATA   AGE\n"), "{text}");
    let text = get_with(&[("output", "custom-columns=N:metadata.name")]).objects_text(&both, false);
    assert_eq!(text.expect("one table"), "N\nb\na\nb\na\n");
    let none = [(&CONFIG_MAPS, vec![])];
    for (output, expected) in [("", ""), ("custom-columns=N:x", "N\n"), ("name", "")] {
        let text = get_with(&[("output", output)]).objects_text(&none, false);
        assert_eq!(text.expect("no objects"), expected, "{output}");
    }
}

#[test]
fn one_object_or_a_list() {
    // GET-03
    let one = [(&CONFIG_MAPS, vec![two_maps().remove(0)])];
    for (output, is_one, expected) in [
        ("jsonpath={.kind}{.size}", true, "ConfigMap9"),
        ("jsonpath={.kind}{.items[0].size}", false, "List9"),
    ] {
        let text = get_with(&[("output", output)]).objects_text(&one, is_one);
        assert_eq!(text.expect("text"), expected);
    }
    let yaml = get_with(&[("output", "yaml")]).objects_text(&one, true);
    assert!(yaml.expect("text").contains("\nkind: ConfigMap\n"));
    let none = get_with(&[("output", "json")]).objects_text(&[(&PODS, vec![])], true);
    assert_eq!(none.expect("a name that does not exist"), "");
    let error = get_with(&[("output", "jsonpath={.size[0]}")]).objects_text(&one, true);
    assert!(
        error
            .expect_err("a number")
            .to_string()
            .contains("executing jsonpath")
    );
}

#[test]
fn order_of_objects() {
    // GET-05
    for (path, expected) in [
        (".metadata.name", "ab"),
        ("{.size}", "ba"),
        ("metadata.labels.app", "ab"),
    ] {
        let path = Template::parse_path(path).expect(path);
        let sorted = sort_objects(two_maps(), &path).expect("sorted");
        let names: String = sorted.iter().map(object_name).collect();
        assert_eq!(names, expected);
    }
    let path = Template::parse_path(".x").expect("path");
    assert!(sort_objects(two_maps(), &path).is_err());
    assert!(sort_objects(Vec::new(), &path).is_ok());
}

#[test]
fn flags_that_do_not_fit() {
    // GET-06
    for (flags, says) in [
        (
            &[("output", "json"), ("show-labels", "true")][..],
            "--show-labels option cannot be used with json printer",
        ),
        (
            &[("output", "jsonpath={.x}"), ("label-columns", "a")],
            "cannot be used with jsonpath printer",
        ),
        (
            &[("output", "name"), ("show-kind", "true")],
            "cannot be used with name printer",
        ),
    ] {
        let error = get_with(flags)
            .check_flags()
            .expect_err("refused")
            .to_string();
        assert!(error.contains(says), "{error}");
    }
    get_with(&[("output", "wide"), ("show-labels", "true")])
        .check_flags()
        .expect("a table");
    for (output, says) in [
        ("fancy", "allowed formats are: custom-columns,"),
        ("json=x", "\"json=x\", allowed formats are"),
        ("go-template={{.x}}", "instead of go-template use jsonpath"),
        (
            "jsonpath",
            "template format specified but no template given",
        ),
        (
            "jsonpath={.x",
            "error parsing jsonpath {.x, unclosed action",
        ),
        ("custom-columns=NAME", "unexpected column \"NAME\""),
        ("custom-columns=NAME:{.a}{.b}", "unexpected path"),
        ("jsonpath-file=/none/x", "cannot read /none/x"),
    ] {
        let error = parse_output_format(output).expect_err(output).to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn formats_of_files() {
    // GET-03 GET-04
    let dir = crate::testing::TestDir::new("get");
    let file = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, text).expect("file");
        path.display().to_string()
    };
    let columns = file("columns", "NAME   SIZE\n.metadata.name  size\n");
    let template = file("template", "{range .items[*]}{.size};{end}");
    let wrong = file("wrong", "NAME SIZE\n.metadata.name\n");
    let kinds = [(&CONFIG_MAPS, two_maps())];
    for (output, expected) in [
        (
            format!("custom-columns-file={columns}"),
            "NAME   SIZE\nb      9\na      10\n",
        ),
        (format!("jsonpath-file={template}"), "9;10;"),
    ] {
        let text = get_with(&[("output", &output)]).objects_text(&kinds, false);
        assert_eq!(text.expect("text"), expected);
    }
    let error = parse_output_format(&format!("custom-columns-file={wrong}"));
    assert!(
        error
            .expect_err("wrong")
            .to_string()
            .contains("different numbers of words")
    );
}

/// Texts that readers of YAML could take for something else.
const TRICKY: &str = "yes No ON off y N true False ~ null = << 0 -1 +7 007 0x1F 0o17 0b11 0b_ 1_000 _1 1. . ._ .5 1e3 \
    1E-3 .inf -.INF .NaN 12:30 1:2:3 190:20:30.15 8080:80 2001-12-14 2001-1-1 2001-12-14T21:59:43Z - -a --- ... ? ?a \
    : :a a: a:b # a#b *a &a !a !!int |a >a %a @a `a 'a' \"a\" [a] {a} ,a {} [] \\ \\n";

/// Makes a text of parts that matter to YAML.
fn random_text(random: &mut Random) -> String {
    let parts: Vec<&str> = TRICKY.split_whitespace().collect();
    let signs = [
        " ",
        "  ",
        "\n",
        "\n\n",
        "\t",
        "\r",
        "a",
        "b c",
        ": ",
        " #",
        "- ",
        "\u{85}",
        "\u{a0}",
        "\u{2028}",
        "\u{feff}",
        "\0",
        "\u{7f}",
        "\u{1f600}",
        "ü",
        "\"",
        "'",
    ];
    let mut text = String::new();
    for _ in 0..random.below(5) {
        let all: &[&str] = if random.one_in(2) { &parts } else { &signs };
        let at = random.below(all.len() as u64);
        text += all[usize::try_from(at).expect("small")];
    }
    text
}

fn random_value(random: &mut Random, depth: u64) -> Value {
    let mut several = |of: &mut dyn FnMut(&mut Random)| {
        for _ in 0..random.below(4) {
            of(random);
        }
    };
    match depth {
        0 => {}
        odd if odd % 2 == 1 => {
            let mut map = serde_json::Map::new();
            several(&mut |random| {
                let key = random_text(random).repeat(1 + usize::from(random.one_in(9)) * 60);
                map.insert(key, random_value(random, odd - 1));
            });
            return map.into();
        }
        even => {
            let mut list = Vec::new();
            several(&mut |random| list.push(random_value(random, even - 1)));
            return list.into();
        }
    }
    match random.below(8) {
        0 => random.one_in(2).into(),
        1 => random.below(u64::MAX).into(),
        2 => json!(-1.5e300),
        3 => json!(1e-7),
        _ => random_text(random).into(),
    }
}

#[test]
fn yaml_is_the_same_object_for_every_reader() {
    // CLI-01
    let mut random = Random(1);
    let mut objects: Vec<Value> = TRICKY
        .split_whitespace()
        .map(|text| json!({text: text, "list": [text, [text]], "k": {text: [{text: text}]}}))
        .collect();
    objects.extend((0..2000).map(|n| json!({"o": random_value(&mut random, 1 + n % 4)})));
    for object in &objects {
        let text = yaml_text(object);
        if text.contains("\"<<\":") {
            // Our reader merges a key in quotes, too.
            continue;
        }
        let read = parse_patch(text.as_bytes()).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert_eq!(read.value, *object, "{text}");
    }
    let python = |words: &[&str]| {
        let mut python = Command::new("python3");
        python
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        python.stderr(Stdio::null()).spawn()
    };
    let has_yaml = python(&["-c", "import yaml"]).and_then(|mut child| child.wait());
    if !has_yaml.is_ok_and(|status| status.success()) {
        skipped!("yaml_is_the_same_object_for_every_reader: needs Python with PyYAML");
        return;
    }
    let script = "import json, sys, yaml\n\
        for text in json.load(sys.stdin): print(json.dumps(yaml.safe_load(text)))";
    let mut judge = python(&["-c", script]).expect("python3");
    let texts: Vec<String> = objects.iter().map(yaml_text).collect();
    let mut to = judge.stdin.take().expect("its input");
    to.write_all(json!(texts).to_string().as_bytes())
        .expect("taken");
    drop(to);
    let said = judge.wait_with_output().expect("its answer");
    let said = String::from_utf8(said.stdout).expect("text");
    assert_eq!(said.lines().count(), objects.len());
    for ((line, object), text) in said.lines().zip(&objects).zip(&texts) {
        let read: Value = line.parse().expect("JSON");
        assert_eq!(read, *object, "{text}");
    }
}
