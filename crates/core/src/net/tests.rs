//! Tables of accepted and rejected URLs and addresses.

use UrlPurpose::{Git, Relay};

use super::*;

fn address(text: &str) -> IpAddr {
    text.parse().expect(text)
}

#[test]
fn hostile_urls_are_rejected_with_their_reason() {
    use OutboundError::{
        Fragment, HostName, InvalidCharacter, LeadingDash, NotAUrl, NumericHost, Port, Query, Scheme, SingleLabel,
        SpecialUse, TooLong, Userinfo,
    };
    let loopback = OutboundError::Address(address("127.0.0.1"), AddressScope::Loopback);
    let long_url = format!("wss://relay.tld/{}", "a".repeat(limits::MAX_URL_BYTES));
    let swelling = format!("wss://relay.tld/{}", "é".repeat(limits::MAX_URL_BYTES / 4));
    let long_label = format!("wss://{}.tld", "a".repeat(64));
    let long_name = format!("wss://{}tld", "a.".repeat(130));
    let table: &[(&str, UrlPurpose, OutboundError)] = &[
        // Unsupported schemes.
        ("", Relay, NotAUrl),
        ("relay.tld", Relay, NotAUrl),
        ("//relay.tld/", Relay, NotAUrl),
        ("http://relay.tld/", Relay, Scheme),
        ("https://relay.tld/", Relay, Scheme),
        ("ws://git.tld/a.git", Git, Scheme),
        ("wss://git.tld/a.git", Git, Scheme),
        ("git://git.tld/a.git", Git, Scheme),
        ("ssh://git.tld/a.git", Git, Scheme),
        ("ftp://git.tld/a.git", Git, Scheme),
        ("file:///etc/passwd", Git, Scheme),
        ("file://git.tld/a.git", Git, Scheme),
        ("gopher://git.tld:70/_x", Git, Scheme),
        ("dict://git.tld/x", Git, Scheme),
        ("ext::sh -c id", Git, InvalidCharacter),
        ("ext::sh", Git, Scheme),
        ("fd::17", Git, Scheme),
        ("data:text/plain,x", Git, Scheme),
        ("javascript:alert(1)", Git, Scheme),
        ("git@git.tld:a.git", Git, NotAUrl),
        ("/srv/git/a.git", Git, NotAUrl),
        // Options of another program.
        ("--upload-pack=touch", Git, LeadingDash),
        ("-oProxyCommand=id", Git, LeadingDash),
        ("https://-oProxyCommand/x", Git, HostName),
        // Credentials, and parts that are never sent to a server.
        ("https://user@git.tld/a.git", Git, Userinfo),
        ("https://user:secret@git.tld/a.git", Git, Userinfo),
        ("https://:@git.tld/a.git", Git, Userinfo),
        ("https://@git.tld/a.git", Git, Userinfo),
        ("wss://relay.tld@127.0.0.1/", Relay, Userinfo),
        ("wss://relay.tld:443@127.0.0.1/", Relay, Userinfo),
        ("wss://relay.tld/#x", Relay, Fragment),
        ("wss://relay.tld#@127.0.0.1/", Relay, Fragment),
        ("https://git.tld/a.git?service=x", Git, Query),
        ("https://git.tld/a.git?", Git, Query),
        // Characters that parsers treat differently.
        (" wss://relay.tld", Relay, InvalidCharacter),
        ("wss://relay.tld ", Relay, InvalidCharacter),
        ("wss://relay.tld/a b", Relay, InvalidCharacter),
        ("wss://relay.tld/\r\nHost: x", Relay, InvalidCharacter),
        ("wss://rel\tay.tld/", Relay, InvalidCharacter),
        ("wss://relay.tld/\0", Relay, InvalidCharacter),
        ("wss://relay.tld/\u{7f}", Relay, InvalidCharacter),
        ("wss://relay.tld/\u{a0}", Relay, InvalidCharacter),
        ("wss://relay.tld/\u{2028}", Relay, InvalidCharacter),
        ("https://git.tld\\@127.0.0.1/", Git, InvalidCharacter),
        ("https:\\\\127.0.0.1\\x", Git, InvalidCharacter),
        ("https:git.tld/a.git", Git, NotAUrl),
        ("https:/git.tld/a.git", Git, NotAUrl),
        ("https:///git.tld/a.git", Git, NotAUrl),
        ("wss://", Relay, NotAUrl),
        ("wss://:443/", Relay, NotAUrl),
        (&long_url, Relay, TooLong),
        (&swelling, Relay, TooLong),
        // Ports.
        ("wss://relay.tld:0/", Relay, Port(0)),
        ("ws://relay.tld:22/", Relay, Port(22)),
        ("ws://relay.tld:25/", Relay, Port(25)),
        ("https://git.tld:445/a.git", Git, Port(445)),
        ("http://git.tld:6379/a.git", Git, Port(6379)),
        ("http://git.tld:6667/a.git", Git, Port(6667)),
        ("http://git.tld:11211/a.git", Git, Port(11211)),
        ("wss://relay.tld:65536/", Relay, NotAUrl),
        ("wss://relay.tld:-1/", Relay, NotAUrl),
        ("wss://relay.tld:x/", Relay, NotAUrl),
        // Names.
        ("wss://localhost/", Relay, SpecialUse),
        ("wss://LOCALHOST./", Relay, SpecialUse),
        ("wss://loc\u{ad}alhost/", Relay, SpecialUse),
        ("wss://ｌｏｃａｌｈｏｓｔ/", Relay, SpecialUse),
        ("wss://a.localhost/", Relay, SpecialUse),
        ("wss://printer.local/", Relay, SpecialUse),
        ("wss://printer。local/", Relay, SpecialUse),
        ("http://metadata.google.internal/", Git, SpecialUse),
        ("wss://wiki.intranet/", Relay, SpecialUse),
        ("wss://nas.home/", Relay, SpecialUse),
        ("wss://nas.home.arpa/", Relay, SpecialUse),
        ("wss://1.0.0.127.in-addr.arpa/", Relay, SpecialUse),
        ("wss://nas.lan/", Relay, SpecialUse),
        ("wss://dc.corp/", Relay, SpecialUse),
        ("wss://box.localdomain/", Relay, SpecialUse),
        ("wss://abcdefghijklmnop.onion/", Relay, SpecialUse),
        ("wss://a.test/", Relay, SpecialUse),
        ("wss://a.invalid/", Relay, SpecialUse),
        ("wss://relay.example/", Relay, SpecialUse),
        ("wss://a.alt/", Relay, SpecialUse),
        ("wss://intranet/", Relay, SpecialUse),
        ("wss://router/", Relay, SingleLabel),
        ("wss://com./", Relay, SingleLabel),
        ("wss://a..tld/", Relay, HostName),
        ("wss://.relay.tld/", Relay, HostName),
        ("wss://relay.tld../", Relay, HostName),
        ("wss://relay-.tld/", Relay, HostName),
        ("wss://rel!ay.tld/", Relay, HostName),
        ("wss://rel%61y.tld/", Relay, HostName),
        (&long_label, Relay, HostName),
        (&long_name, Relay, HostName),
        // Addresses, and names that some parsers read as addresses.
        ("wss://127.0.0.1/", Relay, loopback),
        ("wss://127.0.0.1:7777/", Relay, loopback),
        ("wss://0x7f.1/", Relay, NumericHost),
        ("wss://0X7F.0.0.1/", Relay, NumericHost),
        ("wss://2130706433/", Relay, NumericHost),
        ("wss://0x7f000001/", Relay, NumericHost),
        ("wss://017700000001/", Relay, NumericHost),
        ("wss://127.1/", Relay, NumericHost),
        ("wss://0177.0.0.1/", Relay, NumericHost),
        ("wss://127.0.0.01/", Relay, NumericHost),
        ("wss://127.0.0.1./", Relay, NumericHost),
        ("wss://134744072/", Relay, NumericHost),
        ("wss://1.1/", Relay, NumericHost),
        ("wss://１２７.０.０.１/", Relay, NumericHost),
        ("wss://127。0。0。1/", Relay, NumericHost),
        ("wss://%31%32%37.0.0.1/", Relay, HostName),
        ("wss://127.0.0.256/", Relay, NotAUrl),
        ("wss://1.2.3.4.5/", Relay, NotAUrl),
        ("wss://relay.0x7f/", Relay, NotAUrl),
        ("wss://[::1%25eth0]/", Relay, NotAUrl),
        ("wss://[::1/", Relay, NotAUrl),
        ("wss://::1/", Relay, NotAUrl),
        ("wss://[::1]/", Relay, OutboundError::Address(address("::1"), AddressScope::Loopback)),
        ("wss://[::]:80/", Relay, OutboundError::Address(address("::"), AddressScope::Unspecified)),
        (
            "wss://[::ffff:127.0.0.1]/",
            Relay,
            OutboundError::Address(address("::ffff:127.0.0.1"), AddressScope::Loopback),
        ),
        ("wss://[::ffff:7f00:1]/", Relay, OutboundError::Address(address("::ffff:127.0.0.1"), AddressScope::Loopback)),
        (
            "http://169.254.169.254/latest",
            Git,
            OutboundError::Address(address("169.254.169.254"), AddressScope::LinkLocal),
        ),
        ("http://[fd00:ec2::254]/latest", Git, OutboundError::Address(address("fd00:ec2::254"), AddressScope::Private)),
        ("https://10.0.0.1/a.git", Git, OutboundError::Address(address("10.0.0.1"), AddressScope::Private)),
    ];
    assert!(table.len() >= 80, "{}", table.len());
    for (text, purpose, reason) in table {
        assert_eq!(OutboundUrl::parse(text, *purpose, AddressPolicy::PublicOnly), Err(*reason), "{text}");
        assert!(!reason.to_string().is_empty());
    }
}

#[test]
fn valid_urls_are_accepted_in_canonical_form() {
    let table: &[(&str, UrlPurpose, &str)] = &[
        ("wss://relay.tld", Relay, "wss://relay.tld/"),
        ("wss://relay.tld/", Relay, "wss://relay.tld/"),
        ("ws://relay.tld", Relay, "ws://relay.tld/"),
        ("WSS://Relay.TLD:443", Relay, "wss://relay.tld/"),
        ("wss://relay.tld:444", Relay, "wss://relay.tld:444/"),
        ("ws://relay.tld:7777/x", Relay, "ws://relay.tld:7777/x"),
        ("ws://relay.tld:80/x", Relay, "ws://relay.tld/x"),
        ("wss://relay.tld./x", Relay, "wss://relay.tld/x"),
        ("wss://relay.tld/a/../b", Relay, "wss://relay.tld/b"),
        ("wss://relay.tld/x?y=1&z", Relay, "wss://relay.tld/x?y=1&z"),
        ("wss://bücher.tld/é", Relay, "wss://xn--bcher-kva.tld/%C3%A9"),
        ("wss://a_b.relay.tld", Relay, "wss://a_b.relay.tld/"),
        ("wss://example.com", Relay, "wss://example.com/"),
        ("wss://localhost.tld", Relay, "wss://localhost.tld/"),
        ("wss://1.relay.tld", Relay, "wss://1.relay.tld/"),
        ("wss://127.0.0.1.tld", Relay, "wss://127.0.0.1.tld/"),
        ("wss://8.8.8.8", Relay, "wss://8.8.8.8/"),
        ("ws://8.8.8.8:4848", Relay, "ws://8.8.8.8:4848/"),
        ("wss://[2600::1]", Relay, "wss://[2600::1]/"),
        ("wss://[2600:0:0::0001]:8443/x", Relay, "wss://[2600::1]:8443/x"),
        ("https://git.tld/npub1/a.git", Git, "https://git.tld/npub1/a.git"),
        ("http://git.tld:3000/a%20b.git", Git, "http://git.tld:3000/a%20b.git"),
        ("https://git.tld/-a.git", Git, "https://git.tld/-a.git"),
        ("https://git.tld/~user/a.git/", Git, "https://git.tld/~user/a.git/"),
        ("https://git.tld/a@b.git", Git, "https://git.tld/a@b.git"),
    ];
    assert!(table.len() >= 20);
    for (text, purpose, canonical) in table {
        let target = OutboundUrl::parse(text, *purpose, AddressPolicy::PublicOnly).expect(text);
        assert_eq!(target.to_string(), *canonical);
        let again = OutboundUrl::parse(canonical, *purpose, AddressPolicy::PublicOnly).expect("canonical");
        assert_eq!(again, target, "{text}");
    }
    let target = OutboundUrl::parse("wss://relay.tld:8443/a?b", Relay, AddressPolicy::PublicOnly).expect("good");
    assert_eq!((target.authority().as_str(), target.port(), target.path()), ("relay.tld:8443", 8443, "/a?b"));
    assert!(target.is_tls());
}

#[test]
fn only_public_addresses_are_accepted() {
    use AddressScope::{
        Benchmarking, Documentation, LinkLocal, Loopback, Multicast, Private, Reserved, Shared, Tunnel, Unspecified,
    };
    for (text, scope) in [
        ("0.0.0.0", Unspecified),
        ("0.1.2.3", Unspecified),
        ("10.255.255.255", Private),
        ("100.64.0.0", Shared),
        ("100.127.255.255", Shared),
        ("127.0.0.1", Loopback),
        ("127.255.255.254", Loopback),
        ("169.254.169.254", LinkLocal),
        ("172.16.0.1", Private),
        ("172.31.255.255", Private),
        ("192.0.0.1", Reserved),
        ("192.0.0.170", Reserved),
        ("192.0.2.1", Documentation),
        ("192.88.99.1", Tunnel),
        ("192.168.1.1", Private),
        ("198.18.0.1", Benchmarking),
        ("198.19.255.255", Benchmarking),
        ("198.51.100.7", Documentation),
        ("203.0.113.7", Documentation),
        ("224.0.0.1", Multicast),
        ("239.255.255.255", Multicast),
        ("240.0.0.1", Reserved),
        ("255.255.255.254", Reserved),
        ("255.255.255.255", Multicast),
        ("::", Unspecified),
        ("::1", Loopback),
        ("::2", Tunnel),
        ("::8.8.8.8", Tunnel),
        ("::127.0.0.1", Tunnel),
        ("::ffff:127.0.0.1", Loopback),
        ("::ffff:10.0.0.1", Private),
        ("::ffff:169.254.169.254", LinkLocal),
        ("::ffff:0:8.8.8.8", Tunnel),
        ("64:ff9b::127.0.0.1", Loopback),
        ("64:ff9b::10.0.0.1", Private),
        ("64:ff9b::169.254.169.254", LinkLocal),
        ("64:ff9b:1::8.8.8.8", Tunnel),
        ("64:ff9b:1:ffff::1", Tunnel),
        ("64:ff9b:0:1::8.8.8.8", Tunnel),
        ("100::1", Reserved),
        ("100:0:0:1::1", Reserved),
        ("2001::1", Tunnel),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", Tunnel),
        ("2001:2::1", Benchmarking),
        ("2001:10::1", Reserved),
        ("2001:1f:ffff::1", Reserved),
        ("2001:20::1", Reserved),
        ("2001:30::1", Reserved),
        ("2001:db8::1", Documentation),
        ("2002:7f00:1::", Loopback),
        ("2002:a00:1::1", Private),
        ("2002:c0a8:101::1", Private),
        ("3fff::1", Documentation),
        ("3fff:fff::1", Documentation),
        ("4000::1", Reserved),
        ("5f00::1", Reserved),
        ("fc00::1", Private),
        ("fd12:3456::1", Private),
        ("fe80::1", LinkLocal),
        ("febf::1", LinkLocal),
        ("fec0::1", Private),
        ("ff02::1", Multicast),
        ("ff0e::1", Multicast),
    ] {
        let address = address(text);
        assert_eq!(check_address(address), Err(OutboundError::Address(address, scope)), "{text}");
        assert_eq!(AddressPolicy::Any.check(address), Ok(()));
    }
    for text in [
        "1.1.1.1",
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.0.1.1",
        "192.167.255.255",
        "198.17.255.255",
        "198.20.0.0",
        "223.255.255.255",
        "2600::1",
        "2001:200::1",
        "2001:4860:4860::8888",
        "2a00:1450::1",
        "2002:808:808::1",
        "64:ff9b::8.8.8.8",
        "::ffff:8.8.8.8",
        "3ffe::1",
        "3fff:1000::1",
    ] {
        assert_eq!(AddressPolicy::PublicOnly.check(address(text)), Ok(()), "{text}");
    }
}

#[test]
fn any_policy_skips_only_host_and_address_checks() {
    for text in ["ws://127.0.0.1:7334", "ws://localhost:8080/x", "wss://router", "ws://[::1]:9", "ws://a.test"] {
        let parsed = OutboundUrl::parse(text, Relay, AddressPolicy::Any);
        match text.ends_with(":9") {
            true => assert_eq!(parsed, Err(OutboundError::Port(9))),
            false => assert!(parsed.is_ok(), "{text}: {parsed:?}"),
        }
    }
    for (text, reason) in [
        ("http://127.0.0.1/", OutboundError::Scheme),
        ("ws://u@127.0.0.1/", OutboundError::Userinfo),
        ("ws://127.0.0.1/#x", OutboundError::Fragment),
        ("ws://127.1/", OutboundError::NumericHost),
        ("ws://127.0.0.1:25/", OutboundError::Port(25)),
        ("ws://-x/", OutboundError::HostName),
        ("ws://127.0.0.1/\n", OutboundError::InvalidCharacter),
    ] {
        assert_eq!(OutboundUrl::parse(text, Relay, AddressPolicy::Any), Err(reason), "{text}");
    }
}
