//! Questions to the apiserver about clients of the server: `TokenReview`, `SubjectAccessReview` (SRV-06, SRV-08).

use alloc::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{
    api::order::GatherExt as _,
    kube::{KubeApi, KubeError, KubeLanes, api::ApiResult},
    server::{
        http::UserIdentity,
        network::{AccessQuestion, ReviewError, ReviewReply, Reviewer},
    },
};

/// Most groups, and most values of one key, that are taken of a user.
const MAX_WORDS: usize = 1000;

/// Asks the apiserver on the lanes of the cluster.
pub(in crate::agent) struct ApiserverReviews {
    /// The way to the apiserver.
    pub(in crate::agent) lanes: KubeLanes,
    /// Returns true while the apiserver answers no request.
    pub(in crate::agent) is_away: Box<dyn Fn() -> bool>,
    /// Name of this node.
    pub(in crate::agent) node: String,
}

impl ApiserverReviews {
    async fn request_review(
        &self,
        job: impl FnOnce(&dyn KubeApi) -> ApiResult<Value> + Send + 'static,
    ) -> Result<Value, ReviewError> {
        let asked = self.lanes.run_request(job).await;
        // While the apiserver answers no request, asking again is in vain and keeps other questions waiting (OFF-05).
        asked.map_err(|e| review_error(&e, (self.is_away)()))
    }
}

fn review_error(e: &KubeError, is_away: bool) -> ReviewError {
    ReviewError {
        may_pass: e.may_pass() && !is_away,
        why: e.to_string(),
    }
}

impl Reviewer for ApiserverReviews {
    fn find_token_user(&self, token: String) -> ReviewReply<'_, Option<UserIdentity>> {
        Box::pin(async move {
            let body = token_review_body(&token);
            let review = self.request_review(move |api| api.review_token(body.as_bytes()));
            parse_review_identity(&review.await?)
        })
    }

    fn is_user_allowed(&self, question: AccessQuestion) -> ReviewReply<'_, bool> {
        Box::pin(async move {
            let body = access_review_body(&question, &self.node);
            let review = self.request_review(move |api| api.review_access(body.as_bytes()));
            Ok(review.await?["status"]["allowed"] == true)
        })
    }
}

fn token_review_body(token: &str) -> String {
    json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": { "token": token },
    })
    .to_string()
}

fn access_review_body(question: &AccessQuestion, node: &str) -> String {
    let AccessQuestion {
        user,
        verb,
        subresource,
    } = question;
    json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": user.name,
            "uid": user.uid,
            "groups": user.groups,
            "extra": user.extra,
            "resourceAttributes": {
                "verb": verb, "version": "v1", "resource": "nodes", "subresource": subresource, "name": node,
            },
        },
    })
    .to_string()
}

/// Takes the user that a review names; `None`: the token is no user's.
///
/// - Errors: the apiserver could not tell, which says nothing of the token.
fn parse_review_identity(review: &Value) -> Result<Option<UserIdentity>, ReviewError> {
    let status = &review["status"];
    if status["authenticated"] != true {
        let why = status["error"].as_str().unwrap_or("");
        return match why {
            "" => Ok(None),
            why => Err(ReviewError {
                may_pass: false,
                why: why.to_owned(),
            }),
        };
    }
    let user = &status["user"];
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let words = |value: &Value| -> Vec<String> {
        let all = value.as_array().into_iter().flatten();
        all.filter_map(Value::as_str)
            .take(MAX_WORDS)
            .map(str::to_owned)
            .collect()
    };
    let extra: BTreeMap<String, Vec<String>> = user["extra"]
        .as_object()
        .into_iter()
        .flatten()
        .take(MAX_WORDS)
        .map(|(key, values)| (key.clone(), words(values)))
        .gather_items();
    Ok(Some(UserIdentity {
        name: text(&user["username"]),
        uid: text(&user["uid"]),
        groups: words(&user["groups"]),
        extra,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions() {
        // SRV-08
        let question = AccessQuestion {
            user: UserIdentity {
                name: "eve".into(),
                groups: vec!["g".into()],
                extra: BTreeMap::from([("k".into(), vec!["v".into()])]),
                ..UserIdentity::default()
            },
            verb: "get",
            subresource: "proxy",
        };
        let asked: Value = serde_json::from_str(&access_review_body(&question, "n")).expect("json");
        assert_eq!(
            asked["spec"],
            json!({
                "user": "eve", "uid": "", "groups": ["g"], "extra": {"k": ["v"]},
                "resourceAttributes": {
                    "verb": "get", "version": "v1", "resource": "nodes", "subresource": "proxy", "name": "n",
                },
            })
        );
        assert!(token_review_body("t\"").contains(r#""token":"t\"""#));
    }

    #[test]
    fn answers() {
        // SRV-05 SRV-06
        let known = json!({"status": {"authenticated": true, "user": {
            "username": "u", "uid": "1", "groups": ["a", 5, "b"], "extra": {"k": ["v"]},
        }}});
        let user = parse_review_identity(&known)
            .expect("an answer")
            .expect("known");
        assert_eq!((&*user.name, &*user.uid), ("u", "1"));
        assert_eq!(user.groups, ["a", "b"]);
        assert_eq!(user.extra["k"], ["v"]);
        for nobody in [
            json!({}),
            json!({"status": {"authenticated": false, "user": {"username": "u"}}}),
            json!({"status": {"authenticated": "true"}}),
        ] {
            assert_eq!(parse_review_identity(&nobody).expect("an answer"), None);
        }
        let unsure =
            json!({"status": {"authenticated": false, "error": "etcdserver: leader changed"}});
        let unsure = parse_review_identity(&unsure).expect_err("not kept");
        assert_eq!(
            (&*unsure.why, unsure.may_pass),
            ("etcdserver: leader changed", false)
        );
    }
}
