//! Templates that are meant to do harm: each ends in a text or an error, soon, in bounded memory, on a small
//! stack.

use std::time::Duration;

use mlxcel_session::{ChatOptions, ChatTemplate, Message};
use proptest::prelude::*;
use serde_json::json;

use crate::support::{cpu_time, published_template, published_templates};

/// The least that a system gives a thread which it starts itself; Rust's own have four times as much.
const STACK: usize = 512 << 10;

/// What is allowed to a template, in an unoptimised build.
const PATIENCE: Duration = Duration::from_secs(20);

/// Renders on a small stack, as a program that embeds the crate may have.
fn render(source: &str) -> Result<String, String> {
    let source = source.to_owned();
    let run = move || {
        let options = ChatOptions::default().with_variable("deep", deep(100)).with_variable("x", "text");
        let messages =
            [Message::user("Hello").with_field("tool_calls", json!([{"function": {"name": "f"}}]))];
        let template = ChatTemplate::new(&source).map_err(|error| error_text(&error))?;
        template.render(&messages, &options).map_err(|error| error_text(&error))
    };
    let timed = move || (run(), cpu_time());
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(timed).unwrap();
    let (result, time) = thread.join().expect("no panic");
    assert!(time < PATIENCE, "{time:?}");
    result
}

fn error_text(error: &mlxcel_session::Error) -> String {
    let text = format!("{error}: {}", std::error::Error::source(error).unwrap());
    assert!(text.len() < 20_000 && !text.contains(char::is_control), "{text:?}");
    text
}

fn deep(depth: usize) -> serde_json::Value {
    (0..depth).fold(json!([]), |inner, _| json!([inner]))
}

/// Each is refused, with a word of why.
fn refused(source: &str, why: &str) {
    let shown: String = source.chars().take(200).collect();
    match render(source) {
        Ok(text) => panic!("{shown} gave {} bytes", text.len()),
        Err(error) => assert!(error.contains(why), "{shown}: {error}"),
    }
}

#[test]
fn inputs_that_panicked_in_filters_are_rejected() {
    // An indentation of 65,536 spaces is within the budget; one for each of many lines is not.
    assert_eq!(render("{{ [1]|tojson(indent=65536)|length }}").unwrap(), "65541");
    refused("{{ range(5000)|list|tojson(indent=65536) }}", "memory");
    refused("{{ 'x'|indent(18446744073709551615, true) }}", "memory");
    refused("{% for i in [1] %}{{ loop.cycle() }}{% endfor %}", "line 1: 'cycle' is given nothing");
}

#[test]
fn cyclic_and_deep_values_are_printed_or_rejected() {
    assert_eq!(
        render("{% set n = namespace() %}{% set n.n = n %}{{ n }}{{ n.n.n == n }}").unwrap(),
        "<Namespace>True"
    );
    assert_eq!(
        render("{% set n = namespace() %}{% set n.l = [n] %}{{ n.l }}{{ n.l == n.l }}").unwrap(),
        "[<Namespace>]True"
    );
    let nest = "{% set n = namespace(v=[]) %}{% for i in range(22000) %}{% set n.v = [n.v] %}{% endfor %}";
    refused(&format!("{nest}{{{{ n.v }}}}"), "nested too deep");
    refused(nest, "nested too deep");
    refused(&nest.replace("[n.v]", "{'a': n.v}"), "nested too deep");
    refused(&nest.replace("[n.v]", "(n.v,)"), "nested too deep");
    refused(&nest.replace("v=[]", "v=[1]").replace("[n.v]", "n.v|batch(1)|list"), "nested too deep");
    assert!(render("{{ deep }}{{ deep|tojson }}{{ deep == deep }}{{ [deep]|string|length }}").is_ok());
    let template = ChatTemplate::new("{{ deep }}").unwrap();
    let error = template.render(&[], &ChatOptions::default().with_variable("deep", deep(1000))).unwrap_err();
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("too deep"));
}

#[test]
fn long_chains_and_deeply_nested_templates_are_rejected() {
    for (open, close) in [
        ("-", ""),
        ("not ", ""),
        ("- -", ""),
        ("(", ")"),
        ("[", "]"),
        ("{1:", "}"),
        ("x[", "]"),
        ("x(", ")"),
        ("x|d(", ")"),
    ] {
        refused(&format!("{{{{ {}1{} }}}}", open.repeat(30_000), close.repeat(30_000)), "too deep");
    }
    for link in [
        "+1", ".a", "[0]", "()", "|e", " is none", "|default(1)", " or 1", " and 1", " if 1", "**1", "*1",
        "//1",
    ] {
        refused(&format!("{{{{ x{} }}}}", link.repeat(20_000)), "too deep");
    }
    // Brackets in chains in brackets: each bound by itself would allow their product.
    let chained = (0..38).fold("1".to_owned(), |inner, _| format!("({inner}{})", "+1".repeat(100)));
    refused(&format!("{{{{ {chained} }}}}"), "too deep");
    for (open, close) in [
        ("{% if 1 %}", "{% endif %}"),
        ("{% for i in [1] %}", "{% endfor %}"),
        ("{% set a %}", "{% endset %}"),
        ("{% macro a() %}", "{% endmacro %}"),
        ("{% filter upper %}", "{% endfilter %}"),
        ("{% with %}", "{% endwith %}"),
        ("{% generation %}", "{% endgeneration %}"),
        ("{% if 0 %}{% else %}", "{% endif %}"),
    ] {
        refused(&format!("{}{}", open.repeat(20_000), close.repeat(20_000)), "too deep");
    }
    refused(
        &format!("{{% for {}a{} in [] %}}{{% endfor %}}", "(".repeat(9000), ")".repeat(9000)),
        "too deep",
    );
    // What is long without being deep runs.
    let elifs = "{% elif x == 0 %}".repeat(20_000);
    assert_eq!(render(&format!("{{% if 0 %}}{elifs}{{% else %}}end{{% endif %}}")).unwrap(), "end");
    assert_eq!(render(&format!("{{{{ ('a'{})|length }}}}", " ~ 'b'".repeat(20_000))).unwrap(), "20001");
    assert_eq!(render(&format!("{{{{ 1{} }}}}", " == 1".repeat(20_000))).unwrap(), "True");
    assert_eq!(render(&format!("{{{{ [{}]|sum }}}}", "1,".repeat(20_000))).unwrap(), "20000");
    refused(&"{{ 1 }}".repeat(200_000), "bytes");
}

#[test]
fn unbounded_strings_and_lists_are_rejected() {
    let grow = |step: &str| {
        format!(
            "{{% set n = namespace(t='xxxxxxxx', l=[1, 2]) %}}{{% for i in range(60) %}}{{% set {step} %}}{{% endfor %}}"
        )
    };
    for step in [
        "n.t = n.t ~ n.t",
        "n.t = n.t + n.t",
        "n.t = n.t * 2",
        "n.t = 2 * n.t",
        "n.t = [n.t, n.t]|join",
        "n.t = ''.join([n.t, n.t])",
        "n.t = n.t.replace('x', 'xx')",
        "n.t = n.t|replace('x', 'xx')",
        "n.t = n.t.replace('', n.t)",
        "n.t = '%s%s'|format(n.t, n.t)",
        "n.t = '%s%s' % (n.t, n.t)",
        "n.t = '{0}{0}'.format(n.t)",
        "n.t = n.t|indent(n.t|length, true)",
        "n.t = n.t.center(2 * n.t|length)",
        "n.t = n.t.ljust(2 * n.t|length)",
        "n.t = n.t.zfill(2 * n.t|length)",
        "n.t = n.t|center(2 * n.t|length)",
        "n.t = [n.t, n.t]|tojson",
        "n.t = [n.t, n.t]|string",
        "n.t = n.t|tojson(indent=n.t|length) ~ n.t",
        "n.t = n.t|list|join(n.t)",
        "n.t = '&' ~ (n.t ~ n.t)|e",
        "n.t = n.t|map('upper')|join(n.t)",
        "n.l = n.l + n.l",
        "n.l = n.l * 2",
        "n.l = (n.l|string)|list",
        "n.l = n.l|batch(1, n.l)|list + n.l",
        "n.l = n.l|slice(2 * n.l|length)|list",
    ] {
        refused(&grow(step), "");
    }
    refused("{{ 'x'|indent(100000000000000, true) }}", "memory");
    for source in [
        "{{ '%1000000000d'|format(1) }}",
        "{{ '%-1000000000s' % 'x' }}",
        "{{ '%01000000000d' % 1 }}",
        "{{ '%.1000000000f' % 1.5 }}",
        "{{ [1]|slice(10000000000)|list }}",
        "{{ [1]|batch(10000000000, 1)|list }}",
        "{{ 'x' * 10000000000 }}",
        "{{ [1] * 10000000000 }}",
        "{{ [[]] * 10000000000000000000000000000 }}",
        "{{ 'x'.zfill(10000000000) }}{{ 'x'.center(10000000000) }}",
        "{{ 'x'.rjust(99999999999999999999999999999) }}",
        "{{ ('x' * 10000).replace('', 'y' * 100000) }}",
        "{{ ('x' * 100000)|list|join('y' * 100000) }}",
        "{{ [1]|tojson(indent=10000000000) }}",
        "{{ [1, 2]|tojson(indent='x' * 30000000) }}",
        "{{ [1, 2, 3]|tojson(separators=('x' * 20000000, 'y')) }}",
        "{{ 2 ** 100000000 }}",
        "{{ 9 ** 9 ** 9 ** 9 }}",
        "{{ range(99999999999999999999) }}",
        "{{ range(0, 10000000, 1) }}",
        "{{ strftime_now('%A' * 1000) }}",
        "{% set a = 'x' * 1000000 %}{% for i in range(100000) %}{{ a }}{% endfor %}",
        "{% set n = namespace(s='x' * 100000) %}{% macro m(a) %}{{ a }}{{ a }}{{ m(a ~ a) }}{% endmacro %}{{ m(n.s) }}",
    ] {
        refused(source, "");
    }
    assert_eq!(render("{{ '' * 10000000000 }}{{ [] * 10000000000 }}ok").unwrap(), "[]ok");
    assert_eq!(
        render("{{ 'abc'[::100000000000000000000000000000] }}{{ 'abc'[-9999999999999999999999:] }}").unwrap(),
        "aabc"
    );
}

#[test]
fn work_in_filters_and_calls_counts_towards_the_limit() {
    let million = "{% set s = 'x' * 1000000 %}";
    for work in [
        "{{ s.count('xxxxxxxxxy') }}",
        "{{ 'y' in s }}",
        "{% set t = s|upper %}",
        "{% set t = s.split('xxx', 9)|length %}",
        "{% set t = s|reverse %}",
        "{% set t = s|length %}",
        "{% set t = s[::-1] %}",
        "{% set t = s|trim('abcdefgx') %}",
        "{{ s is lower }}",
        "{{ s|wordcount }}",
        "{{ s == 'y' ~ s[1:] }}",
        "{% set t = s|int %}{% set t = s|float %}{% set t = s.isdigit() %}",
        "{% set t = s[500000] %}",
    ] {
        refused(&format!("{million}{{% for i in range(100000) %}}{work}{{% endfor %}}"), "too many steps");
    }
    // Arguments are read as well: patterns, keys, separators, names of attributes.
    let long = "{% set b = 'x' * 9000000 %}{% set d = {b ~ 'y': 1, b ~ 'z': 2} %}{% set k = b ~ 'w' %}{% set s = [d] * 100 %}";
    for work in [
        "{{ 'x'.find(b) }}",
        "{{ 'x'.count(b) }}",
        "{{ 'x'.split(b)|length }}",
        "{{ 'x'.replace(b, '') }}",
        "{{ 'x'|replace(b, '') }}",
        "{{ 'x'.partition(b)|length }}",
        "{{ b.startswith((b, b, b)) }}",
        "{{ [b, b] == [k, k] }}",
        "{{ []|tojson(indent=b) }}",
        "{{ []|tojson(separators=(b, b)) }}",
        "{{ [1]|join(b) }}",
        "{{ d[k] }}",
        "{{ s|map(attribute=k)|first }}",
        "{{ s|sort(attribute=k)|length }}",
        "{{ s|selectattr(k)|list|length }}",
        "{{ 'x' is in b }}",
    ] {
        refused(&format!("{long}{{% for i in range(100000) %}}{work}{{% endfor %}}"), "");
    }
    refused(&format!("{{% set {} = 1 %}}", "a".repeat(1000)), "a name is too long");
    let thousands = "{% set l = range(50000)|list %}";
    for work in [
        "{{ l|sort|first }}",
        "{{ l|unique|first }}",
        "{{ -1 in l }}",
        "{{ l == l[:] }}",
        "{{ l|sum }}",
        "{{ l|map('string')|first }}",
        "{{ l|select('odd')|first }}",
        "{{ l|max }}",
        "{{ l.index(49999) }}",
        "{{ l|join|length }}",
    ] {
        refused(&format!("{thousands}{{% for i in range(100000) %}}{work}{{% endfor %}}"), "too many steps");
    }
    let nested = "{% for a in range(100000) %}".repeat(4) + "{{ a }}" + &"{% endfor %}".repeat(4);
    refused(&nested, "");
    refused(
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "too many steps",
    );
    refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested too deep");
    refused(
        "{% macro a() %}{{ b() }}{{ caller }}{% endmacro %}{% macro b() %}{% call a() %}x{% endcall %}{% endmacro %}{{ a() }}",
        "nested too deep",
    );
    refused("{% macro m(x=m()) %}{% endmacro %}{{ m() }}", "nested too deep");
    refused("{% macro m(n) %}{{ m(n) if n }}{{ m(n) }}{% endmacro %}{{ m(1) }}", "nested too deep");
    refused("{{ [1]|map('map', 'map', 'map')|list }}", "");
    // The largest frames: calls in arguments, in filters, in loops, in blocks that capture.
    for body in [
        "{{ m(m) }}",
        "{{ '' ~ (m(1) if 1)|default(m(2)) }}",
        "{{ {'a': [m(1)]}['a'][m(2)] }}",
        "{{ (1 + (2 * m(1)|length)) < 3 }}",
        "{% for i in [1] %}{% if 1 %}{{ m(i)|trim|e|replace('a', m(i)) }}{% endif %}{% endfor %}",
        "{% set v | trim | replace('a', 'b') %}{% filter upper %}{% with a = m(1) %}{% endwith %}{% endfilter %}{% endset %}",
        "{% for i in m(1) if m(2) %}{% endfor %}",
        "{{ caller }}{% call m() %}{{ m() }}{% endcall %}",
        "{{ x.replace(m(), m()).split(m())[m():m()] is eq(m()) }}",
    ] {
        refused(&format!("{{% macro m(x='') %}}{body}{{% endmacro %}}{{{{ m('x') }}}}"), "nested too deep");
    }
    let doubling =
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}";
    refused(doubling, "");
    let scopes = "{% for i in range(100000) %}{% for j in range(100000) %}{% macro m() %}{{ i }}{% endmacro %}{% endfor %}{% endfor %}";
    refused(scopes, "memory");
    refused(
        "{% for i in range(100000) %}{% for j in range(1000) %}{% set n = namespace(a=1) %}{% endfor %}{% endfor %}",
        "",
    );
}

#[test]
fn deep_values_are_limited_by_the_remaining_stack() {
    for calls in (20..60).step_by(2) {
        let walk = "{{ deep|tojson(indent=1) }}{{ deep }}{{ [deep, 1] == [deep, 2] }}{{ [deep, [1]]|sort }}";
        let source = format!(
            "{{% macro m(n) %}}{{% if n %}}{{{{ m(n - 1) }}}}{{% else %}}{walk}{{% endif %}}{{% endmacro %}}{{{{ m({calls}) }}}}"
        );
        let _ = render(&source);
    }
}

#[test]
fn templates_cannot_access_files_or_environment() {
    for source in [
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% from 'x' import y %}",
        "{% extends 'x' %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ self.__init__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({}) }}",
        "{{ cycler('a').next() }}",
        "{{ lipsum(n=100000000) }}",
    ] {
        refused(source, "");
    }
    assert_eq!(render("{{ x.__class__ }}{{ environ }}{{ config }}").unwrap(), "");
}

#[test]
fn template_errors_name_the_line_and_escape_quotes() {
    refused("a\n\n{{ x.y.z }}", "line 3: 'x.y' is undefined");
    refused("{% if x %}\n{% for i in y %}\n{% endif %}", "line 3");
    refused("\n{{ raise_exception('\\x1b[2J' * 1000000) }}", "line 2: \\u{1b}[2J");
    refused("{{ 'x'|\u{1b} }}", "line 1");
    refused(&format!("{{% {} %}}", "a".repeat(200)), "line 1: there is no block 'aaa");
}

#[test]
fn ordinary_prompts_render_within_a_millisecond_and_long_ones_within_limits() {
    let template = ChatTemplate::new(&published_template("qwen3")).unwrap();
    let short: Vec<_> = (0..8).map(|_| Message::user("What is the answer?")).collect();
    let render = || template.render(&short, &ChatOptions::default()).unwrap();
    let best = (0..20)
        .map(|_| {
            let start = cpu_time();
            render();
            cpu_time() - start
        })
        .min()
        .unwrap();
    // Ten times the promise, for a build without optimisation.
    assert!(best < Duration::from_millis(10), "{best:?}");
    let long: Vec<_> = (0..2000).map(|_| Message::user("word ".repeat(1000))).collect();
    assert!(template.render(&long, &ChatOptions::default()).unwrap().len() > 10_000_000);
}

/// Pieces that mutations put in; those of [`PHRASES`] have spaces or escapes.
const PIECES: &str = r#"{% %} {{ }} {# #} - + ~ * ** // % ( ) [ ] { } ' " \ | . , : = loop messages
    99999999999999999999 -1 |tojson(indent=9) |indent(999999) namespace(a=messages)"#;
const PHRASES: [&str; 6] = ["\u{fffd}é", " if ", " else ", " for x in messages ", " is not ", " in "];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Published structures, damaged: pieces are put in, taken out and repeated.
    #[test]
    fn mutated_templates_give_a_text_or_an_error(
        style in any::<prop::sample::Index>(),
        damage in prop::collection::vec((0..4usize, any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..6),
    ) {
        let mut source = style.get(&published_templates()).1.clone();
        for (kind, place, piece) in damage {
            let places: Vec<usize> = source.char_indices().map(|(at, _)| at).collect();
            if places.is_empty() {
                break;
            }
            let at = *place.get(&places);
            let other = places[piece.index(places.len())];
            let pieces: Vec<&str> = PIECES.split_whitespace().chain(PHRASES).collect();
            let piece = *piece.get(&pieces);
            let (low, high) = (at.min(other), at.max(other));
            match kind {
                0 => source.insert_str(at, piece),
                1 => source = source[..low].to_owned() + &source[high..],
                2 => source.insert_str(at, &source[low..high].chars().take(200).collect::<String>()),
                _ => source.insert_str(at, &piece.repeat(70)),
            }
        }
        let _ = render(&source);
    }
}
