//! Changes of templates: words put in, parts repeated, moved and taken from other templates, blocks around
//! blocks.

use fastrand::Rng;

use super::{bytes, choose, interesting, rounds};

/// What templates are made of.
const PIECES: [&str; 173] = [
    "{{ ", " }}", "{%- ", " -%}", "{% ", " %}", "{# ", " #}", "{% if x %}", "{% elif 1 %}", "{% else %}",
    "{% endif %}", "{% endfor %}", "{% break %}", "{% continue %}", "{% endmacro %}", "{% call f(1) %}",
    "{% endcall %}", "{% set n.a = n %}", "{% set v %}", "{% endset %}", "{% filter upper %}",
    "{% endfilter %}", "{% with a=1 %}", "{% endwith %}", "{% raw %}", "{% endraw %}", "{% generation %}",
    "messages", "messages[0]", "m.role", "m['content']", "loop.index", "loop.first", "loop.cycle(1, 2)",
    "loop.previtem", "tools", "n.a", "x", "f(1)", "f(f(1))", "namespace(a=[])", "range(3)",
    "range(0, 9, -1)", "dict(a=1)", "none", "true", "caller()", "1", "-1", "0.5", "1e308", "'a'", "''",
    "'é😀'", "'%s%d'", "[1, 2]", "[]", "{'a': 1}", "{}", "(1,)", "()", "[1:2]", "[::-1]", "[-1]", "[::0]",
    " + ", " - ", " * ", " / ", " // ", " % ", " ** ", " ~ ", " == ", " != ", " < ", " >= ", " and ", " or ",
    "not ", " in ", " not in ", " is ", " is not ", " if 1 else ", " is defined", " is none", " is string",
    " is mapping", " is iterable", " is divisibleby(0)", "|length", "|tojson", "|tojson(indent=2)", "|trim",
    "|upper", "|list", "|string", "|int", "|float", "|round(2)", "|abs", "|join(', ')", "|default('d')",
    "|first", "|last", "|reverse", "|sort", "|unique", "|sum", "|min", "|map('upper')", "|select('odd')",
    "|batch(2)", "|slice(3)", "|indent(4)", "|items", "|dictsort", "|format(1, 'a')", "|e", "|safe",
    "|center(9)", "|wordcount", "|groupby('role')", "|truncate(3)", "|wordwrap(2)", "|title", "|capitalize",
    "|attr('a')", "|pprint", "|urlencode", "|random", ".split('a')", ".strip()", ".lstrip('a')",
    ".startswith('a')", ".upper()", ".title()", ".items()", ".get('a')", ".keys()", ".values()",
    ".append(1)", ".pop()", ".format(1, a=2)", ".join(['a'])", ".find('a')", ".index('a')", ".count('')",
    ".replace('', 'a')", ".zfill(9)", ".center(9)", ".partition('a')", ".rsplit(None, 1)", ".splitlines()",
    ".isdigit()", ".encode('utf-8')", ".copy()", ".update({})", ", ", "(", ")", "[", "]", "{", "}", "'",
    "\"", "=", "|", ".", ":",
];

/// Longer ones.
const LONG_PIECES: [&str; 14] = [
    "{% for m in messages %}",
    "{% for a, b in x.items() if a %}",
    "{% macro f(a, b=1) %}",
    "{% set n = namespace(a=1) %}",
    "{% set n.a = [n.a] %}",
    "{% endgeneration %}",
    "raise_exception('no')",
    "strftime_now('%d %b %Y')",
    "9999999999999999999999",
    "|replace('a', 'bb')",
    "|map(attribute='role')",
    "|selectattr('role', 'equalto', 'user')",
    "|rejectattr('content')",
    ".endswith(('a', 'b'))",
];

/// What opens and closes around other things.
const AROUND: &[(&str, &str)] = &[
    ("{% if 1 %}", "{% endif %}"),
    ("{% for i in range(3) %}", "{% endfor %}"),
    ("{% for i in messages %}", "{% endfor %}"),
    ("{% macro g(x=1) %}", "{% endmacro %}{{ g() }}"),
    ("{% set w %}", "{% endset %}{{ w }}"),
    ("{% filter trim %}", "{% endfilter %}"),
    ("{{ (", ") }}"),
    ("(", ")"),
    ("[", "]"),
    ("{'a': ", "}"),
    ("f(", ")"),
    ("-", ""),
    ("not ", ""),
];

/// Changes a template; what is no text is changed by bytes.
pub(super) fn mutate(base: &[u8], other: &[u8], rng: &mut Rng) -> Vec<u8> {
    let (Ok(base), Ok(other)) = (std::str::from_utf8(base), std::str::from_utf8(other)) else {
        return bytes::mutate(base, other, rng);
    };
    let mut text = base.to_owned();
    for _ in 0..rounds(rng) {
        change(&mut text, other, rng);
        if text.len() > 1 << 20 {
            break;
        }
    }
    text.into_bytes()
}

fn change(text: &mut String, other: &str, rng: &mut Rng) {
    let place = part(text, rng);
    let old = text.get(place.clone()).unwrap_or_default().to_owned();
    let new = match rng.u8(..10) {
        0..=2 => format!("{old}{}", piece(rng)),
        3 => piece(rng).to_owned(),
        4 => String::new(),
        5 => old.repeat(1 << rng.u8(..12).min(rng.u8(..12))),
        6 => other.get(part(other, rng)).unwrap_or_default().to_owned(),
        7 => {
            let (open, close) = choose(AROUND, rng).copied().unwrap_or_default();
            let times = 1 << rng.u8(..10).min(rng.u8(..10));
            format!("{}{old}{}", open.repeat(times), close.repeat(times))
        }
        8 => format!("{old}{{{{ {}{} }}}}", piece(rng), piece(rng)),
        _ => interesting(rng).to_string(),
    };
    text.replace_range(place, &new);
}

fn piece(rng: &mut Rng) -> &'static str {
    let at = rng.usize(..PIECES.len() + LONG_PIECES.len());
    PIECES.iter().chain(&LONG_PIECES).nth(at).copied().unwrap_or_default()
}

/// A part of `text` from where something begins to where something else does.
fn part(text: &str, rng: &mut Rng) -> std::ops::Range<usize> {
    let start = boundary(text, rng.usize(..=text.len()));
    let most = if rng.u8(..8) == 0 { text.len() } else { 24 };
    let end = boundary(text, text.len().min(start + rng.usize(..=most)));
    start..end.max(start)
}

/// The first place from `at` on where a word ends or a bracket stands, or the end.
fn boundary(text: &str, at: usize) -> usize {
    let bytes = text.as_bytes();
    let alike = |a: u8, b: u8| a.is_ascii_alphanumeric() && b.is_ascii_alphanumeric();
    (at..text.len())
        .find(|&place| text.is_char_boundary(place) && (place == 0 || !alike(bytes[place - 1], bytes[place])))
        .unwrap_or(text.len())
}
