//! The expected values are those of Go 1.26.8.

use axum::body::to_bytes;
use rstest::rstest;

use super::*;

/// Status, Location and body of a redirect. For a clean path: 200, its unescaped form and an empty body.
async fn ask(method: Method, target: &str) -> (u16, String, String) {
    let uri = target.parse().unwrap();
    let Some(answer) = unclean(&method, &uri) else {
        return (200, String::from_utf8(path(&uri)).unwrap(), String::new());
    };
    let (head, body) = answer.into_parts();
    let location = head.headers.get(LOCATION);
    let location = location.map_or("", |value| value.to_str().unwrap());
    let body = to_bytes(body, 65_536).await.unwrap().to_vec();
    let body = String::from_utf8(body).unwrap();
    (head.status.as_u16(), location.to_owned(), body)
}

#[rstest]
#[case::twice("//healthz", "/healthz")]
#[case::thrice("///healthz", "/healthz")]
#[case::here("/./healthz", "/healthz")]
#[case::up("/x/../healthz", "/healthz")]
#[case::above_the_root("/../healthz", "/healthz")]
#[case::two_up("/a/b/../../livez", "/livez")]
#[case::here_at_the_end("/healthz/.", "/healthz")]
#[case::up_at_the_end("/healthz/..", "/")]
#[case::a_slash_stays("//healthz/", "/healthz/")]
#[case::of_two_slashes_one_stays("/healthz//", "/healthz/")]
#[case::nothing_else("//", "/")]
#[case::query("//healthz?x=//1", "/healthz?x=//1")]
#[case::empty_query("//healthz?", "/healthz")]
#[case::absolute("http://x//healthz", "/healthz")]
#[case::escaped_once_more("//%68ealthz", "/%2568ealthz")]
#[case::not_in_a_path("//a|b\"", "/a%257Cb%2522")]
#[case::allowed_but_escaped("//[x]!~*()", "/%5Bx%5D%21~%2A%28%29")]
#[case::plain("//a+b=c,$@;x:80", "/a+b=c,$@;x:80")]
#[tokio::test]
async fn a_path_that_is_not_clean_is_redirected(#[case] target: &str, #[case] location: &str) {
    let page = format!("<a href=\"{location}\">Temporary Redirect</a>.\n\n");
    let wanted = (307, location.to_owned(), page);
    assert_eq!(ask(Method::GET, target).await, wanted);
    let (status, to, body) = ask(Method::POST, target).await;
    assert_eq!((status, &*to, &*body), (307, location, ""));
    // CONNECT is a request to a proxy, so its path is not cleaned.
    assert_eq!(ask(Method::CONNECT, target).await.0, 200);
}

#[rstest]
#[case("/healthz", "/healthz")]
#[case("/healthz?q=//x", "/healthz")]
#[case("/%68%65althz", "/healthz")]
#[case("/healthz/", "/healthz/")]
#[case("/%2fhealthz", "//healthz")]
#[case("/x/%2e%2e/healthz", "/x/../healthz")]
#[case("/a|b", "/a|b")]
#[tokio::test]
async fn a_clean_path_is_unescaped(#[case] target: &str, #[case] path: &str) {
    assert_eq!(
        ask(Method::GET, target).await,
        (200, path.to_owned(), String::new())
    );
}

/// The length of a redirect's page is limited, because the agent holds it until the client reads it.
#[tokio::test]
async fn a_long_path_is_not_redirected() {
    let long = "'&".repeat(REDIRECTED);
    assert_eq!(ask(Method::GET, &format!("//x?{long}")).await.0, 200);
    let most = "\"".repeat(REDIRECTED - 2);
    let (status, location, body) = ask(Method::GET, &format!("//{most}")).await;
    assert_eq!(status, 307);
    assert!(location.len() + body.len() < 10 * REDIRECTED + 100);
}

#[tokio::test]
async fn a_page_contains_no_markup_of_the_request() {
    let (_, location, body) = ask(Method::GET, "//x?a='&b").await;
    assert_eq!(location, "/x?a='&b");
    assert_eq!(
        body,
        "<a href=\"/x?a=&#39;&amp;b\">Temporary Redirect</a>.\n\n"
    );
}
