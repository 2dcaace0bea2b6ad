//! The `tojson` filter of chat templates: JSON as Python's `json.dumps` writes it, which is what models were trained on.

use std::io::{self, Write};

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, Serializer};

/// `value|tojson(indent=…, ensure_ascii=…, separators=…, sort_keys=…)`; not escaped for HTML, as transformers defines it.
pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    let sort: Option<bool> = options.get("sort_keys")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    options.assert_all_used()?;
    let failed = |error| Error::new(ErrorKind::BadSerialization, "tojson").with_source(error);
    let mut json = serde_json::to_value(value).map_err(failed)?;
    if sort == Some(true) {
        json.sort_all_objects();
    }
    let (item, key) = match separators.as_deref() {
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "tojson takes two separators")),
    };
    let format = PythonFormat { indent, item, key, ascii: ascii == Some(true), depth: 0, filled: false };
    let mut text = Vec::new();
    json.serialize(&mut Serializer::with_formatter(&mut text, format)).map_err(failed)?;
    // The serializer writes UTF-8 only.
    Ok(Value::from(String::from_utf8_lossy(&text).into_owned()))
}

/// The layout of `json.dumps`: a space after each separator, and line breaks where an indent is given.
struct PythonFormat {
    indent: Option<usize>,
    item: String,
    key: String,
    ascii: bool,
    depth: usize,
    /// Whether the innermost array or object has an element.
    filled: bool,
}

impl PythonFormat {
    fn open<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.filled = false;
        out.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.filled {
            self.break_line(out)?;
        }
        self.filled = true;
        out.write_all(bracket)
    }

    fn element<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(self.item.as_bytes())?;
        }
        self.filled = true;
        self.break_line(out)
    }

    fn break_line<W: ?Sized + Write>(&self, out: &mut W) -> io::Result<()> {
        match self.indent {
            Some(indent) => write!(out, "\n{:width$}", "", width = indent * self.depth),
            None => Ok(()),
        }
    }
}

impl Formatter for PythonFormat {
    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.element(out, first)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.element(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.key.as_bytes())
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        if !self.ascii {
            return CompactFormatter.write_string_fragment(out, fragment);
        }
        for character in fragment.chars() {
            if character.is_ascii() {
                write!(out, "{character}")?;
            } else {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use minijinja::value::{Serde, Value};
    use minijinja::{Environment, context};

    use super::tojson;

    fn render(template: &str) -> String {
        let mut environment = Environment::new();
        environment.add_filter("tojson", tojson);
        let value = serde_json::json!({"b": [1, 2.5, null, true], "a": {}, "é<'": "ü\"\n😀", "c": []});
        environment.render_str(template, context! { value => Value::from(Serde(value)) }).unwrap()
    }

    #[test]
    fn json_is_written_as_python_writes_it() {
        assert_eq!(
            render("{{ value|tojson }}"),
            r#"{"b": [1, 2.5, null, true], "a": {}, "é<'": "ü\"\n😀", "c": []}"#
        );
        assert_eq!(
            render("{{ value|tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':')) }}"),
            r#"{"a":{},"b":[1,2.5,null,true],"c":[],"\u00e9<'":"\u00fc\"\n\ud83d\ude00"}"#
        );
        assert_eq!(
            render("{{ value|tojson(indent=2) }}"),
            "{\n  \"b\": [\n    1,\n    2.5,\n    null,\n    true\n  ],\n  \"a\": {},\n  \
             \"é<'\": \"ü\\\"\\n😀\",\n  \"c\": []\n}"
        );
    }
}
