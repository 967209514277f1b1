//! One order of a certificate: authorizations, challenges, and the certificate (RFC 8555, section
//! 7.4).
//!
//! An order has two parts. The first ends when all names are validated; if it fails, the next
//! attempt begins with another order. Then the order is saved, and the second part requests the
//! certificate and fetches it. If that fails, the next attempt continues here, because the
//! authority may have issued the certificate, and limits their number.

use super::schedule::{Cause, seconds};
use super::store::{SavedOrder, Store};
use instant_acme::{
    Account, AuthorizationStatus, ChallengeStatus, ChallengeType, Error, Identifier, NewOrder,
    Order, OrderStatus, Problem, RetryPolicy,
};
use onrush::tls::TlsConfig;
use onrush_files::HttpChallenges;
use rcgen::{
    CertificateParams, CertificateSigningRequest, CustomExtension, DistinguishedName, KeyPair,
};
use std::time::{Duration, Instant, SystemTime};

/// How long the authority may take for the validation, and for the certificate.
const POLL: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(250))
    .timeout(Duration::from_secs(120));

/// How the authority validates a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// A certificate at port 443 (RFC 8737).
    TlsAlpn01,
    /// A resource at port 80 (RFC 8555, section 8.3).
    Http01,
}

/// What to order, and where its state is kept.
pub(super) struct Wanted<'a> {
    pub(super) names: &'a [String],
    pub(super) subject: &'a str,
    pub(super) method: Method,
    pub(super) responses: Responses<'a>,
    pub(super) store: &'a Store,
}

/// Where the responses to challenges are put. Dropping it removes them.
pub(super) struct Responses<'a> {
    pub(super) tls: &'a TlsConfig,
    /// If requests without TLS are redirected.
    pub(super) http: Option<&'a HttpChallenges>,
}

/// The private key and the chain of certificates, in PEM.
pub(super) struct Issued {
    pub(super) key: String,
    pub(super) chain: String,
}

/// Why there is no certificate.
#[derive(Debug)]
pub(super) struct OrderError {
    pub(super) cause: Cause,
    pub(super) reason: String,
    /// The authority does not know the account.
    pub(super) account_is_unknown: bool,
    /// How long the authority asks to wait with the next request.
    pub(super) pause: Option<Duration>,
}

impl OrderError {
    pub(super) fn new(cause: Cause, reason: impl Into<String>) -> OrderError {
        OrderError {
            cause,
            reason: reason.into(),
            account_is_unknown: false,
            pause: None,
        }
    }
}

impl Method {
    fn challenge(self) -> ChallengeType {
        match self {
            Method::TlsAlpn01 => ChallengeType::TlsAlpn01,
            Method::Http01 => ChallengeType::Http01,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Method::TlsAlpn01 => "tls-alpn-01",
            Method::Http01 => "http-01",
        }
    }
}

impl Drop for Responses<'_> {
    fn drop(&mut self) {
        self.tls.end_acme_challenges();
        if let Some(http) = self.http {
            http.clear();
        }
    }
}

impl From<Error> for OrderError {
    fn from(error: Error) -> OrderError {
        let kind = match &error {
            Error::Api(problem) => problem_kind(problem),
            _ => "",
        };
        let is_server_error = |problem: &Problem| problem.status.is_some_and(|code| code >= 500);
        let cause = match &error {
            Error::Api(_) if kind == "rateLimited" => Cause::RateLimited,
            Error::Api(_) if kind == "badNonce" => Cause::Unreachable,
            Error::Api(problem) if is_server_error(problem) => Cause::Unreachable,
            Error::Other(_) | Error::Http(_) | Error::Hyper(_) | Error::Json(_) | Error::Str(_) => {
                Cause::Unreachable
            }
            _ => Cause::Refused,
        };
        let reason = match &error {
            Error::Api(problem) => problem_text(problem),
            Error::Json(_) => format!("the response is not that of an ACME server: {error}"),
            error => error.to_string(),
        };
        OrderError {
            account_is_unknown: kind == "accountDoesNotExist",
            pause: match error {
                Error::Timeout(Some(at)) => Some(at.saturating_duration_since(Instant::now())),
                _ => None,
            },
            ..OrderError::new(cause, reason)
        }
    }
}

fn refused(reason: impl Into<String>) -> OrderError {
    OrderError::new(Cause::Refused, reason)
}

/// The last part of the type, such as `rateLimited`.
fn problem_kind(problem: &Problem) -> &str {
    let kind = problem.r#type.as_deref().unwrap_or_default();
    kind.rsplit(':').next().unwrap_or_default()
}

fn problem_text(problem: &Problem) -> String {
    let detail = problem.detail.as_deref().unwrap_or("no details");
    format!("{}: {detail}", problem_kind(problem))
}

/// Orders a certificate, or continues the order that is saved.
pub(super) async fn run(account: &Account, wanted: &Wanted<'_>) -> Result<Issued, OrderError> {
    let saved = match wanted.store.order(wanted.subject, SystemTime::now()) {
        Some(saved) => saved,
        None => {
            let saved = begin(account, wanted).await?;
            wanted.store.save_order(&saved).map_err(|error| {
                let folder = wanted.store.path().display();
                refused(format!("cannot save the order in {folder}: {error}"))
            })?;
            saved
        }
    };
    let issued = complete(account, wanted, saved).await;
    if let Err(OrderError {
        cause: Cause::Refused,
        ..
    }) = issued
    {
        wanted.store.forget_order();
    }
    issued
}

/// The first part: creates an order and has all names validated.
async fn begin(account: &Account, wanted: &Wanted<'_>) -> Result<SavedOrder, OrderError> {
    let identifiers: Vec<_> = wanted.names.iter().cloned().map(Identifier::Dns).collect();
    let mut order = account.new_order(&NewOrder::new(&identifiers)).await?;
    prepare(&mut order, wanted).await?;
    let status = order.poll_ready(&POLL).await;
    if !matches!(status, Ok(OrderStatus::Ready)) {
        // The order has no details; the challenges do.
        if let Some(reason) = failed_challenges(&mut order).await {
            return Err(refused(reason));
        }
        let status = status?;
        return Err(refused(format!("the order is {status:?} instead of ready")));
    }
    let key = KeyPair::generate().map_err(|error| refused(error.to_string()))?;
    Ok(SavedOrder {
        subject: wanted.subject.to_owned(),
        url: order.url().to_owned(),
        key: key.serialize_pem(),
        created: seconds(SystemTime::now()),
    })
}

/// The second part: requests the certificate, unless that has been done, and fetches it.
///
/// # Errors
/// [`Cause::Refused`] if this order cannot be continued.
async fn complete(
    account: &Account,
    wanted: &Wanted<'_>,
    SavedOrder { url, key, .. }: SavedOrder,
) -> Result<Issued, OrderError> {
    let mut order = account.order(url).await?;
    match order.state().status {
        OrderStatus::Ready => {
            let request = request(wanted.names, &key).map_err(|e| refused(e.to_string()))?;
            order.finalize_csr(request.der()).await?;
        }
        OrderStatus::Pending => return Err(refused("the order is pending again")),
        OrderStatus::Processing | OrderStatus::Valid | OrderStatus::Invalid => {}
    }
    let mut error = match order.poll_certificate(&POLL).await {
        Ok(chain) => return Ok(Issued { key, chain }),
        Err(error) => OrderError::from(error),
    };
    error.cause = match (order.state().status, error.cause) {
        (OrderStatus::Invalid, _) => Cause::Refused,
        (_, Cause::RateLimited) => Cause::RateLimited,
        // There may be a certificate.
        _ => Cause::Unreachable,
    };
    Err(error)
}

fn request(names: &[String], key: &str) -> Result<CertificateSigningRequest, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    params.serialize_request(&KeyPair::from_pem(key)?)
}

/// Responds to the challenges of all names that are not validated yet.
async fn prepare(order: &mut Order, wanted: &Wanted<'_>) -> Result<(), OrderError> {
    let Wanted {
        names,
        method,
        responses,
        ..
    } = wanted;
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        let name = authorization.identifier().to_string();
        if !names.iter().any(|own| own.eq_ignore_ascii_case(&name)) {
            return Err(refused(format!("the authority asks for {name}")));
        }
        match authorization.status {
            AuthorizationStatus::Pending => {}
            AuthorizationStatus::Valid => continue,
            status => {
                return Err(refused(format!(
                    "the authorization of {name} is {status:?}"
                )));
            }
        }
        let Some(mut challenge) = authorization.challenge(method.challenge()) else {
            let method = method.name();
            return Err(refused(format!("{name}: {method} is not offered")));
        };
        let proof = challenge.key_authorization();
        match (method, responses.http) {
            (Method::Http01, Some(http)) => http.set(&challenge.token, proof.as_str()),
            (Method::Http01, None) => return Err(refused("no port redirects to HTTPS")),
            (Method::TlsAlpn01, _) => {
                let (certificate, key) = validation_certificate(&name, proof.digest().as_ref())
                    .map_err(|error| refused(error.to_string()))?;
                (responses.tls.set_acme_challenge(&name, certificate, key))
                    .map_err(|error| refused(error.to_string()))?;
            }
        }
        challenge.set_ready().await?;
    }
    Ok(())
}

/// The certificate that proves the control of `name` (RFC 8737, section 3), and its key, in PEM.
fn validation_certificate(name: &str, digest: &[u8]) -> Result<(String, String), rcgen::Error> {
    let mut params = CertificateParams::new([name.to_owned()])?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

/// What the authority says about the validations that have failed.
async fn failed_challenges(order: &mut Order) -> Option<String> {
    let mut reasons = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let name = authorization.identifier().to_string();
        let Ok(state) = authorization.refresh().await else {
            continue;
        };
        let failed = state
            .challenges
            .iter()
            .filter(|challenge| challenge.status == ChallengeStatus::Invalid);
        for problem in failed.filter_map(|challenge| challenge.error.as_ref()) {
            reasons.push(format!("{name}: {}", problem_text(problem)));
        }
    }
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(kind: &str, status: u16) -> OrderError {
        let json = format!(
            r#"{{"type": "urn:ietf:params:acme:error:{kind}", "detail": "d", "status": {status}}}"#
        );
        let problem: Problem = serde_json::from_str(&json).expect("a problem");
        Error::Api(problem).into()
    }

    #[test]
    fn errors_have_a_cause() {
        let limited = api("rateLimited", 429);
        assert_eq!(limited.cause, Cause::RateLimited);
        assert_eq!(limited.reason, "rateLimited: d");
        assert_eq!(api("rejectedIdentifier", 400).cause, Cause::Refused);
        assert_eq!(api("serverInternal", 500).cause, Cause::Unreachable);
        assert_eq!(api("badNonce", 400).cause, Cause::Unreachable);
        assert!(api("accountDoesNotExist", 400).account_is_unknown);
        let other = OrderError::from(Error::Other("refused".into()));
        assert_eq!(
            (other.cause, other.reason.as_str()),
            (Cause::Unreachable, "refused")
        );
        let late = OrderError::from(Error::Timeout(Some(Instant::now())));
        assert_eq!(
            (late.cause, late.pause),
            (Cause::Refused, Some(Duration::ZERO))
        );
    }

    #[test]
    fn the_certificate_of_a_validation_is_accepted() {
        let (certificate, key) = validation_certificate("a.example", &[7; 32]).unwrap();
        let made = rcgen::generate_simple_self_signed(["b.example".to_owned()]).unwrap();
        let tls = TlsConfig::from_pem(made.cert.pem(), made.signing_key.serialize_pem()).unwrap();
        tls.set_acme_challenge("a.example", certificate, key)
            .unwrap();
    }
}
