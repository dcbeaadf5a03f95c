//! The few pages that a person may see.

/// Text that may stand anywhere in HTML.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>{title}</title><style>body{{font:16px/1.5 system-ui;max-width:40rem;margin:3rem auto;padding:0 1rem}}\
         code{{background:#8882;padding:.1em .3em;border-radius:.2em;overflow-wrap:anywhere}}</style>{body}</html>",
        title = escape(title),
    )
}

/// What a browser sees at the service's own address.
pub(crate) fn landing(name: &str, description: &str, relay: &str) -> String {
    let body = format!(
        "<h1>{}</h1><p>{}</p><p>This is a <b>GRASP</b> service: a nostr relay and a git host in one. \
         Point a nostr client at <code>{}</code>.</p>",
        escape(name),
        escape(description),
        escape(relay),
    );
    page(name, &body)
}

/// What a browser sees anywhere else.
pub(crate) fn not_found() -> String {
    page("Not found", "<h1>Not found</h1><p>There is nothing at this address.</p>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_text_stays_text() {
        let page = landing("<script>alert(1)</script>", "\"'&", "wss://x");
        assert!(!page.contains("<script>") && page.contains("&lt;script&gt;") && page.contains("&quot;&#39;&amp;"));
    }
}
