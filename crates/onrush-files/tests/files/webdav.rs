//! WebDAV on both drivers and in the simulator: methods and properties.

use crate::common::webdav::{LOCK_INFO, element, paths, propfind, webdav};
use crate::common::{TestServer, drivers, on_all_backends, writable};
use onrush::DriverPreference;
use onrush_files::FilesOptions;
use onrush_store::testing::MemoryStore;
use std::sync::Arc;

#[test]
fn without_the_option_there_is_no_webdav() {
    on_all_backends(&writable(), |server| {
        for method in ["PROPFIND", "PROPPATCH", "MKCOL", "LOCK", "UNLOCK"] {
            let reply = server.request(&format!("{method} /a"), b"");
            assert_eq!(reply.status, 405, "{method}");
        }
        assert_eq!(server.request("OPTIONS /", b"").field("dav"), None);
    });
    let read_only = FilesOptions {
        webdav: true,
        ..FilesOptions::default()
    };
    on_all_backends(&read_only, |server| {
        server.add("a", b"x");
        for method in [
            "PROPPATCH",
            "MKCOL",
            "LOCK",
            "UNLOCK",
            "PUT",
            "DELETE",
            "MOVE",
        ] {
            let reply = server.request(&format!("{method} /a\nDestination: /b"), b"");
            assert_eq!(reply.status, 405, "{method}");
        }
        let options = server.request("OPTIONS /", b"");
        assert_eq!(options.field("dav"), Some("1, 2"));
        assert_eq!(options.field("allow"), Some("GET, HEAD, OPTIONS, PROPFIND"));
        assert_eq!(paths(&propfind(server, "/", "1")), ["/", "/a"]);
    });
}

#[test]
fn folders_are_made_and_listed() {
    on_all_backends(&webdav(), |server| {
        for (path, status) in [
            ("/f", 201),
            ("/f/g%20h/", 201),
            ("/f", 405),
            ("/", 405),
            ("/none/x", 409),
            ("/.onrush/x", 403),
        ] {
            let reply = server.request(&format!("MKCOL {path}"), b"");
            assert_eq!(reply.status, status, "{path}");
            assert_eq!(reply.field("allow").is_some(), status == 405, "{path}");
        }
        server.put("/f/a&b", b"12345");
        assert_eq!(server.request("MKCOL /f/a&b", b"").status, 405);
        assert_eq!(server.request("MKCOL /f/a&b/c", b"").status, 409);
        assert_eq!(server.request("MKCOL /x", b"body").status, 415);
        let listed = propfind(server, "/f", "1");
        assert_eq!(listed.status, 207);
        assert_eq!(paths(&listed), ["/f/", "/f/a%26b", "/f/g%20h/"]);
        assert_eq!(listed.field("content-location"), Some("/f/"));
        let kind = Some("application/xml; charset=utf-8");
        assert_eq!(listed.field("content-type"), kind);
        assert_eq!(listed.field("x-content-type-options"), Some("nosniff"));
        assert_eq!(listed.field("cache-control"), Some("no-cache"));
        let object = propfind(server, "/f/a&b", "0");
        let text = object.text();
        assert_eq!(element(text, "getcontentlength"), Some("5"));
        let head = server.request("HEAD /f/a&b", b"");
        let etag = head.etag().replace('"', "&quot;");
        assert_eq!(element(text, "getetag"), Some(&etag[..]));
        assert_eq!(
            element(text, "getlastmodified"),
            head.field("last-modified")
        );
        for (path, depth, status) in [
            ("/none", "0", 404),
            ("/f/a&b/", "0", 404),
            ("/f", "2", 400),
            ("/f", "infinity", 403),
            ("/f/a&b", "infinity", 207),
            ("/.onrush/", "1", 404),
        ] {
            assert_eq!(
                propfind(server, path, depth).status,
                status,
                "{path} {depth}"
            );
        }
        // Without the field, the depth is infinite: of an object that is the object.
        assert_eq!(server.request("PROPFIND /f/a&b", b"").status, 207);
        let refused = server.request("PROPFIND /f", b"");
        assert!(refused.status == 403 && refused.text().contains("propfind-finite-depth"));
    });
}

#[test]
fn a_folder_with_many_entries_is_listed_completely() {
    let options = webdav();
    for driver in drivers() {
        let mut server = TestServer::real("/", &options, driver);
        for at in 0..2_500 {
            server.add(&format!("many/{at:05}"), b"x");
        }
        let listed = propfind(&mut server, "/many/", "1");
        let mut expected = vec!["/many/".to_owned()];
        expected.extend((0..2_500).map(|at| format!("/many/{at:05}")));
        assert_eq!(paths(&listed), expected);
        assert!(listed.text().ends_with("</D:multistatus>\n"));
    }
}

#[test]
fn properties_that_are_asked_for_are_returned() {
    on_all_backends(&webdav(), |server| {
        server.request("PUT /a\nContent-Type: text/x-test", b"content");
        let ask = |server: &mut TestServer, inner: &str| {
            let body = format!("<p:propfind xmlns:p=\"DAV:\" xmlns:x=\"u:x\">{inner}</p:propfind>");
            server.request("PROPFIND /a\nDepth: 0", body.as_bytes())
        };
        let some = ask(
            server,
            "<p:prop><p:getcontenttype/><x:none/><p:quota/></p:prop>",
        );
        assert_eq!(element(some.text(), "getcontenttype"), Some("text/x-test"));
        let (found, missing) = some.text().split_once("200 OK").expect("both");
        assert!(
            !found.contains("none") && !found.contains("getetag"),
            "{found}"
        );
        assert!(
            missing.contains("<none xmlns=\"u:x\"/><quota xmlns=\"DAV:\"/>"),
            "{missing}"
        );
        assert!(missing.contains("404 Not Found"), "{missing}");
        let names = ask(server, "<p:propname/>");
        assert!(names.text().contains("<D:getetag/>"), "{}", names.text());
        let all = ask(server, "<p:allprop/><p:include><x:more/></p:include>");
        assert!(
            all.text().contains("<more xmlns=\"u:x\"/>"),
            "{}",
            all.text()
        );
        for wrong in ["", "<p:prop/><p:allprop/>", "<x:prop/>"] {
            assert_eq!(ask(server, wrong).status, 400, "{wrong}");
        }
        for (body, status) in [
            ("<a/>".to_owned(), 400),
            ("<".to_owned(), 400),
            (" ".repeat(70_000), 413),
            ("<!DOCTYPE a [<!ENTITY b \"c\">]><a/>".to_owned(), 400),
        ] {
            let reply = server.request("PROPFIND /a\nDepth: 0", body.as_bytes());
            assert_eq!(reply.status, status);
        }
    });
}

#[test]
fn properties_of_clients_stay_with_the_object() {
    on_all_backends(&webdav(), |server| {
        server.put("/a", b"content");
        server.request("MKCOL /f", b"");
        let etag = server.get("/a").etag().to_owned();
        let patch = |server: &mut TestServer, path: &str, inner: &str| {
            let body = format!(
                "<D:propertyupdate xmlns:D=\"DAV:\" xmlns=\"u:x\">{inner}</D:propertyupdate>"
            );
            server.request(&format!("PROPPATCH {path}"), body.as_bytes())
        };
        let color = |server: &mut TestServer, path: &str| {
            let reply = propfind(server, path, "0");
            let (_, rest) = reply.text().split_once("<color xmlns=\"u:x\">")?;
            rest.split_once("</color>")
                .map(|(value, _)| value.to_owned())
        };
        let set = "<D:set><D:prop><color>r&amp;d<b/></color></D:prop></D:set>";
        let reply = patch(server, "/a", set);
        assert_eq!(reply.status, 207);
        assert!(reply.text().contains("200 OK"), "{}", reply.text());
        let value = Some("r&amp;d<b></b>".to_owned());
        assert_eq!(color(server, "/a"), value);
        assert_eq!(server.get("/a").etag(), etag, "the content is the same");
        // A copy has it, and so has what replaces the object and what it is renamed to.
        assert_eq!(server.request("COPY /a\nDestination: /b", b"").status, 201);
        assert_eq!(server.put("/a", b"replaced").status, 204);
        assert_eq!(server.request("MOVE /a\nDestination: /c", b"").status, 201);
        assert_eq!(
            (color(server, "/b"), color(server, "/c")),
            (value.clone(), value.clone())
        );
        assert_eq!(server.put("/a", b"new").status, 201);
        assert_eq!(color(server, "/a"), None);
        assert_eq!(patch(server, "/f", set).status, 207);
        assert_eq!(server.request("COPY /f\nDestination: /g", b"").status, 201);
        assert_eq!(color(server, "/g/"), value);
        // All or none.
        let both = "<D:remove><D:prop><color/></D:prop></D:remove>\
            <D:set><D:prop><D:getetag>x</D:getetag></D:prop></D:set>";
        let reply = patch(server, "/b", both);
        let (one, other) = reply
            .text()
            .split_once("424")
            .expect("one depends on the other");
        assert!(
            one.contains("color") && other.contains("403 Forbidden"),
            "{}",
            reply.text()
        );
        assert_eq!(color(server, "/b"), value);
        let remove = "<D:remove><D:prop><color/><none/></D:prop></D:remove>";
        assert!(patch(server, "/b", remove).text().contains("200 OK"));
        assert_eq!(color(server, "/b"), None);
        let long = format!(
            "<D:set><D:prop><color>{}</color></D:prop></D:set>",
            "x".repeat(2000)
        );
        assert!(patch(server, "/b", &long).text().contains("507"));
        assert!(patch(server, "/", set).text().contains("403"));
        assert_eq!(patch(server, "/none", set).status, 404);
        assert_eq!(patch(server, "/b", "").status, 400);
    });
}

/// What one client stores is a part of what others receive.
#[test]
fn no_property_and_no_lock_makes_a_response_malformed() {
    on_all_backends(&webdav(), |server| {
        server.put("/f/a", b"x");
        for (inner, status) in [
            ("<p:é xmlns:p='u:1'>]]&gt;&#13;</p:é>", 207),
            ("<b xmlns='u:2' xml:lang='en'/>", 207),
            ("<xml:b/>", 400),
            ("<b xmlns='http://www.w3.org/XML/1998/namespace'/>", 400),
            ("<b xmlns='http://www.w3.org/2000/xmlns/'/>", 400),
            ("<b xmlns:p='u:1' xmlns:q='u:1' p:c='1' q:c='2'/>", 400),
            ("<b xmlns='u:}'/>", 400),
            ("<b×/>", 400),
        ] {
            let update = format!(
                "<D:propertyupdate xmlns:D='DAV:'><D:set><D:prop>{inner}</D:prop></D:set>\
                 </D:propertyupdate>"
            );
            let reply = server.request("PROPPATCH /f/a", update.as_bytes());
            assert_eq!(reply.status, status, "{inner}");
            let lock = LOCK_INFO.replace("someone", &format!("</D:href>{inner}<D:href>"));
            let reply = server.request("LOCK /f/a\nTimeout: Second-1", lock.as_bytes());
            assert_eq!(
                reply.status,
                if status == 207 { 200 } else { 400 },
                "{inner}"
            );
            for (path, depth) in [("/f/", "1"), ("/f/a", "0")] {
                let listed = propfind(server, path, depth);
                let parsed = roxmltree::Document::parse(listed.text());
                assert!(parsed.is_ok(), "{inner}: {parsed:?}");
            }
            let token = reply.field("lock-token").unwrap_or_default();
            server.request(&format!("UNLOCK /f/a\nLock-Token: {token}"), b"");
        }
    });
}

#[test]
fn a_store_without_properties_refuses_each() {
    let store = Arc::new(MemoryStore::new());
    let mut server = TestServer::on_store(store, &webdav(), DriverPreference::Epoll);
    server.put("/f/a", b"content");
    let body = "<D:propertyupdate xmlns:D=\"DAV:\"><D:set><D:prop><x/></D:prop></D:set>\
        </D:propertyupdate>";
    let reply = server.request("PROPPATCH /f/a", body.as_bytes());
    assert_eq!(reply.status, 207);
    assert!(reply.text().contains("403 Forbidden"), "{}", reply.text());
    assert_eq!(paths(&propfind(&mut server, "/f/", "1")), ["/f/", "/f/a"]);
    assert_eq!(server.request("MKCOL /g", b"").status, 501);
}

#[test]
fn a_slash_at_the_end_makes_no_difference() {
    on_all_backends(&webdav(), |server| {
        server.put("/f/a", b"1");
        assert_eq!(server.request("MOVE /f\nDestination: /g/", b"").status, 201);
        assert_eq!(server.request("COPY /g/\nDestination: /h", b"").status, 201);
        assert_eq!(server.get("/h/a").text(), "1");
        // An object replaces a folder, and a folder an object.
        server.put("/o", b"object");
        assert_eq!(server.request("COPY /o\nDestination: /g/", b"").status, 204);
        assert_eq!(server.get("/g").text(), "object");
        assert_eq!(server.request("MOVE /h\nDestination: /g", b"").status, 204);
        assert_eq!(server.get("/g/a").text(), "1");
        let kept = server.request("MOVE /o\nDestination: /g\nOverwrite: F", b"");
        assert_eq!(kept.status, 412);
        assert_eq!(server.delete("/g").status, 204);
        assert_eq!(propfind(server, "/g", "0").status, 404);
    });
}

#[test]
fn the_time_of_the_client_is_shown_and_preconditions_use_that_of_the_upload() {
    on_all_backends(&webdav(), |server| {
        let put = server.request("PUT /a\nX-OC-Mtime: 1000000000.5", b"1");
        assert_eq!(
            (put.status, put.field("x-oc-mtime")),
            (201, Some("accepted"))
        );
        let date = "Sun, 09 Sep 2001 01:46:40 GMT";
        let got = server.get("/a");
        assert_eq!(got.field("last-modified"), Some(date));
        assert_eq!(
            element(propfind(server, "/a", "0").text(), "getlastmodified"),
            Some(date)
        );
        let listed = propfind(server, "/", "1");
        let (_, entry) = listed.text().split_once("/a</D:href>").expect("the object");
        assert_eq!(element(entry, "getlastmodified"), Some(date));
        // Other bytes with the same time are not taken for the same version.
        let again = server.request("PUT /a\nX-OC-Mtime: 1000000000", b"2");
        assert_ne!(again.etag(), got.etag());
        let since = server.request(&format!("GET /a\nIf-Modified-Since: {date}"), b"");
        assert_eq!(since.status, 200);
        // A time that cannot be kept counts as absent: the file must not be lost for it.
        for (status, wrong) in [
            (201, ""),
            (204, "x"),
            (204, "-1"),
            (204, "1e9"),
            (204, "1."),
        ] {
            let reply = server.request(&format!("PUT /b\nX-OC-Mtime: {wrong}"), b"1");
            assert_eq!(
                (reply.status, reply.field("x-oc-mtime")),
                (status, None),
                "{wrong}"
            );
        }
    });
}

/// A short request does not have a response that is much longer.
#[test]
fn the_names_of_a_request_are_limited() {
    on_all_backends(&webdav(), |server| {
        server.put("/a", b"1");
        let ask = |server: &mut TestServer, method: &str, namespace: &str, names: &str| {
            let (start, end) = match method {
                "PROPFIND" => ("<D:propfind", "</D:propfind>"),
                _ => ("<D:propertyupdate", "</D:set></D:propertyupdate>"),
            };
            let set = if method == "PROPFIND" { "" } else { "<D:set>" };
            let body = format!(
                "{start} xmlns:D='DAV:' xmlns:x='{namespace}'>{set}<D:prop>{names}</D:prop>{end}"
            );
            server.request(&format!("{method} /a\nDepth: 0"), body.as_bytes())
        };
        let names =
            |count: usize| -> String { (0..count).map(|at| format!("<x:n{at}/>")).collect() };
        for method in ["PROPFIND", "PROPPATCH"] {
            let escaped = "&amp;".repeat(256);
            let long = "n".repeat(257);
            for (namespace, count, status, text) in [
                ("u:", 128, 207, "n127"),
                ("u:", 129, 400, "128 properties"),
                (&escaped[..], 128, 400, "long names"),
                (&long, 1, 400, "longer than 256 bytes"),
            ] {
                let reply = ask(server, method, namespace, &names(count));
                assert_eq!(reply.status, status, "{method} {count} {}", reply.text());
                assert!(reply.text().contains(text), "{method} {}", reply.text());
            }
        }
        let twice = ask(server, "PROPFIND", "u:", &"<x:n/>".repeat(200));
        assert_eq!(
            (twice.status, twice.text().matches("<n ").count()),
            (207, 1)
        );
    });
}
