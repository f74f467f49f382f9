//! The admin port's HTTP server.
//!
//! | path | answer |
//! |---|---|
//! | `GET /metrics[?detail=partition]` | Prometheus text |
//! | `GET /health/live` | 200 while the node answers its own threads |
//! | `GET /health/ready` | 200 or 503, JSON with reasons |
//! | `GET /health/cluster` | 200 or 503, JSON with reasons |
//! | `GET /v1/status` | everything above as one JSON document |
//! | `POST /v1/partitions/TOPIC/P/leader?node=N` | moves a leadership; must reach the leader |
//! | `POST /v1/nodes/N/decommission` | removes a node for good; any node may be asked |

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use corduroy_env::Env;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::connections::{self, Limits};
use super::health::{cluster_health, readiness};
use super::metrics::{CONTENT_TYPE, Detail, render};
use super::status::NodeStatus;

/// How long the node may take to describe itself before it counts as stuck.
pub const STATUS_WAIT_MAX: Duration = Duration::from_secs(3);

/// Asks the node for its status. Called from the admin thread.
pub type StatusFn = Arc<dyn Fn() -> BoxFuture<'static, NodeStatus> + Send + Sync>;

/// Asks the node to hand a leadership over. Called from the admin thread.
pub type LeadFn =
    Arc<dyn Fn(LeadRequest) -> BoxFuture<'static, Result<LeadAnswer, LeadError>> + Send + Sync>;

/// Asks the cluster to remove a node for good. Called from the admin thread.
pub type DecommissionFn = Arc<
    dyn Fn(i32) -> BoxFuture<'static, Result<DecommissionAnswer, DecommissionError>> + Send + Sync,
>;

/// What the admin port needs from its node.
#[derive(Clone)]
pub struct AdminServices {
    pub status: StatusFn,
    pub lead: LeadFn,
    pub decommission: DecommissionFn,
}

/// A node that has left for good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecommissionAnswer {
    pub node: i32,
    /// Partitions that still have a place on it: one replica short until replicas can be moved.
    pub short_partitions: Vec<String>,
}

/// Why a node stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecommissionError {
    /// The controller's word.
    #[error("{0}")]
    Refused(String),
    /// No answer from the controller.
    #[error("{0}")]
    Unanswered(String),
}

/// "Let this node lead this partition."
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeadRequest {
    pub topic: String,
    pub partition: i32,
    pub node: i32,
}

/// The leadership as it stands after the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeadAnswer {
    pub topic: String,
    pub partition: i32,
    pub leader: i32,
    pub leader_epoch: i32,
}

/// Why a leadership stays where it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeadError {
    #[error("no partition {partition} of topic `{topic}`")]
    UnknownPartition { topic: String, partition: i32 },
    #[error("node {node} holds no replica of it; replicas are on {}", show_nodes(.replicas))]
    NotAReplica { node: i32, replicas: Vec<i32> },
    /// Only the leader can hand over.
    #[error("this node is not the leader")]
    NotLeader {
        leader: Option<i32>,
        /// The leader's admin port, to ask there.
        leader_admin: Option<SocketAddr>,
    },
    /// It could not lead: out of sync, stopped, down. Nothing was tried.
    #[error("{0}")]
    NotInSync(String),
    #[error("the new leader did not take over in time")]
    TimedOut,
    #[error("{0}")]
    Other(String),
}

fn show_nodes(nodes: &[i32]) -> String {
    let nodes: Vec<String> = nodes.iter().map(i32::to_string).collect();
    nodes.join(", ")
}

/// The JSON body of every refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// One sentence.
    pub error: String,
    /// Who leads instead, where that is the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<i32>,
    /// The leader's admin port, to ask there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_admin: Option<SocketAddr>,
}

/// A running admin port. Dropping it stops it.
pub struct AdminServer {
    addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl AdminServer {
    /// Where it listens: with the real port if port 0 was asked for.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Closes the port and its connections; returns when the thread has ended.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed by its thread; there is nothing to add.
            let _ = thread.join();
        }
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        self.end();
    }
}

/// Opens the admin port on a thread of its own; returns when it listens.
///
/// # Errors
/// The operating system's: address in use, no such address, no permission, no thread.
pub fn start(env: &Env, listen: SocketAddr, services: AdminServices) -> io::Result<AdminServer> {
    let (bound_tx, bound_rx) = std::sync::mpsc::channel();
    let (stop_tx, stop_rx) = oneshot::channel();
    let thread_env = env.clone();
    let thread = env.spawn_thread("admin", move || {
        let runtime = match tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
        {
            Ok(runtime) => runtime,
            Err(error) => {
                let _ = bound_tx.send(Err(error));
                return;
            }
        };
        runtime.block_on(async move {
            let listener = match thread_env.listen(listen).await {
                Ok(listener) => listener,
                Err(error) => {
                    let _ = bound_tx.send(Err(error));
                    return;
                }
            };
            let addr = match listener.local_addr() {
                Ok(addr) => addr,
                Err(error) => {
                    let _ = bound_tx.send(Err(error));
                    return;
                }
            };
            let _ = bound_tx.send(Ok(addr));
            tokio::select! {
                () = connections::serve(listener, router(services), Limits::default()) => {}
                _ = stop_rx => {}
            }
        });
    })?;
    match bound_rx.recv() {
        Ok(Ok(addr)) => Ok(AdminServer {
            addr,
            stop: Some(stop_tx),
            thread: Some(thread),
        }),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(io::Error::other(
            "the admin thread ended before it listened",
        )),
    }
}

fn router(services: AdminServices) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
        .route("/health/cluster", get(cluster))
        .route("/v1/status", get(status))
        .route("/v1/partitions/{topic}/{partition}/leader", post(lead))
        .route("/v1/nodes/{node}/decommission", post(decommission))
        .with_state(services)
}

async fn read_status(services: &AdminServices) -> Result<NodeStatus, Response> {
    tokio::time::timeout(STATUS_WAIT_MAX, (services.status)())
        .await
        .map_err(|_| {
            let seconds = STATUS_WAIT_MAX.as_secs();
            refuse(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("a shard did not answer within {seconds} s"),
            )
        })
}

#[derive(Deserialize)]
struct MetricsQuery {
    detail: Option<String>,
}

async fn metrics(
    State(services): State<AdminServices>,
    Query(query): Query<MetricsQuery>,
) -> Result<Response, Response> {
    let detail = match query.detail.as_deref() {
        None => Detail::Node,
        Some("partition") => Detail::Partition,
        Some(other) => {
            return Err(refuse(
                StatusCode::BAD_REQUEST,
                format!("unknown detail `{other}`; `partition` is the only one"),
            ));
        }
    };
    let status = read_status(&services).await?;
    Ok((
        [(header::CONTENT_TYPE, CONTENT_TYPE)],
        render(&status, detail),
    )
        .into_response())
}

async fn live(State(services): State<AdminServices>) -> Result<Response, Response> {
    read_status(&services).await?;
    Ok(Json(serde_json::json!({ "live": true })).into_response())
}

async fn ready(State(services): State<AdminServices>) -> Result<Response, Response> {
    let readiness = readiness(&read_status(&services).await?);
    Ok((ok_or_unavailable(readiness.ready), Json(readiness)).into_response())
}

async fn cluster(State(services): State<AdminServices>) -> Result<Response, Response> {
    let health = cluster_health(&read_status(&services).await?);
    Ok((ok_or_unavailable(health.healthy), Json(health)).into_response())
}

async fn status(State(services): State<AdminServices>) -> Result<Response, Response> {
    Ok(Json(read_status(&services).await?).into_response())
}

#[derive(Deserialize)]
struct LeadQuery {
    node: i32,
}

async fn lead(
    State(services): State<AdminServices>,
    Path((topic, partition)): Path<(String, i32)>,
    Query(LeadQuery { node }): Query<LeadQuery>,
    headers: HeaderMap,
) -> Result<Response, Response> {
    if !is_same_site(&headers) {
        return Err(refuse(
            StatusCode::FORBIDDEN,
            "a page of another site may not ask for this",
        ));
    }
    match (services.lead)(LeadRequest {
        topic,
        partition,
        node,
    })
    .await
    {
        Ok(answer) => Ok(Json(answer).into_response()),
        Err(error) => Err(refuse_lead(error)),
    }
}

async fn decommission(
    State(services): State<AdminServices>,
    Path(node): Path<i32>,
    headers: HeaderMap,
) -> Result<Response, Response> {
    if !is_same_site(&headers) {
        return Err(refuse(
            StatusCode::FORBIDDEN,
            "a page of another site may not ask for this",
        ));
    }
    match (services.decommission)(node).await {
        Ok(answer) => Ok(Json(answer).into_response()),
        Err(error) => {
            let code = match &error {
                DecommissionError::Refused(_) => StatusCode::CONFLICT,
                DecommissionError::Unanswered(_) => StatusCode::SERVICE_UNAVAILABLE,
            };
            Err(refuse(code, error.to_string()))
        }
    }
}

/// A browser names the page that asks in `Origin`; other clients don't send it. Without this check
/// any web page could move leaderships through its visitor's browser.
fn is_same_site(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else {
        return true;
    };
    let (Ok(origin), Some(Ok(host))) = (
        origin.to_str(),
        headers.get(header::HOST).map(|host| host.to_str()),
    ) else {
        return false;
    };
    origin
        .split_once("://")
        .is_some_and(|(_, site)| site == host)
}

fn ok_or_unavailable(is_ok: bool) -> StatusCode {
    if is_ok {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

fn refuse(code: StatusCode, error: impl Into<String>) -> Response {
    let body = Refusal {
        error: error.into(),
        leader: None,
        leader_admin: None,
    };
    (code, Json(body)).into_response()
}

fn refuse_lead(error: LeadError) -> Response {
    let code = match &error {
        LeadError::UnknownPartition { .. } => StatusCode::NOT_FOUND,
        LeadError::NotAReplica { .. } => StatusCode::BAD_REQUEST,
        LeadError::NotLeader { .. } => StatusCode::MISDIRECTED_REQUEST,
        LeadError::NotInSync(_) => StatusCode::CONFLICT,
        LeadError::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        LeadError::Other(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let text = error.to_string();
    let body = match error {
        LeadError::NotLeader {
            leader,
            leader_admin,
        } => Refusal {
            error: text,
            leader,
            leader_admin,
        },
        _ => Refusal {
            error: text,
            leader: None,
            leader_admin: None,
        },
    };
    (code, Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::admin::status::PartitionView;

    /// Starts a port over `status`, sends one raw request and returns the whole answer.
    fn ask(status: NodeStatus, request: &str) -> String {
        let env = Env::real();
        let services = AdminServices {
            status: Arc::new(move || {
                let status = status.clone();
                Box::pin(async move { status })
            }),
            lead: Arc::new(|request: LeadRequest| {
                Box::pin(async move {
                    if request.node == 9 {
                        return Err(LeadError::NotLeader {
                            leader: Some(2),
                            leader_admin: Some(SocketAddr::from(([127, 0, 0, 1], 9))),
                        });
                    }
                    Ok(LeadAnswer {
                        topic: request.topic,
                        partition: request.partition,
                        leader: request.node,
                        leader_epoch: 5,
                    })
                })
            }),
            decommission: Arc::new(|node| {
                Box::pin(async move {
                    match node {
                        9 => Err(DecommissionError::Refused("node 9 is up".to_owned())),
                        node => Ok(DecommissionAnswer {
                            node,
                            short_partitions: vec!["t/0".to_owned()],
                        }),
                    }
                })
            }),
        };
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = start(&env, any, services).expect("a free port");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let answer = runtime.block_on(async {
            let mut stream = env.connect(server.addr()).await.expect("the port answers");
            stream.write_all(request.as_bytes()).await.expect("request");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.expect("answer");
            answer
        });
        server.stop();
        answer
    }

    fn get(path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    }

    fn serving() -> NodeStatus {
        NodeStatus {
            is_serving: true,
            controller: Some(1),
            ..NodeStatus::default()
        }
    }

    #[test]
    fn health_answers_follow_the_status() {
        assert!(ask(serving(), &get("/health/live")).starts_with("HTTP/1.1 200"));
        assert!(ask(serving(), &get("/health/ready")).starts_with("HTTP/1.1 200"));
        assert!(ask(serving(), &get("/health/cluster")).starts_with("HTTP/1.1 200"));

        let mut status = serving();
        status.partitions.push(PartitionView {
            topic: "t".to_owned(),
            ..Default::default()
        });
        let answer = ask(status, &get("/health/cluster"));
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(
            answer.contains("1 partition without a leader: t/0"),
            "{answer}"
        );
        assert!(ask(NodeStatus::default(), &get("/health/ready")).starts_with("HTTP/1.1 503"));
    }

    #[test]
    fn metrics_are_prometheus_text() {
        let answer = ask(serving(), &get("/metrics"));
        assert!(
            answer.contains("content-type: text/plain; version=0.0.4"),
            "{answer}"
        );
        assert!(answer.contains("\ncorduroy_node_serving 1\n"), "{answer}");
        assert!(ask(serving(), &get("/metrics?detail=x")).starts_with("HTTP/1.1 400"));
    }

    #[test]
    fn leaderships_move_only_by_the_leader_and_not_by_foreign_pages() {
        let post = |node: i32, extra: &str| {
            format!(
                "POST /v1/partitions/orders/3/leader?node={node} HTTP/1.1\r\nhost: x\r\n\
                 {extra}connection: close\r\ncontent-length: 0\r\n\r\n"
            )
        };
        let moved = ask(serving(), &post(2, ""));
        assert!(moved.contains(r#"{"topic":"orders","partition":3,"leader":2,"leader_epoch":5}"#));
        let elsewhere = ask(serving(), &post(9, ""));
        assert!(elsewhere.starts_with("HTTP/1.1 421"), "{elsewhere}");
        assert!(
            elsewhere.contains(r#""leader_admin":"127.0.0.1:9""#),
            "{elsewhere}"
        );
        let foreign = ask(serving(), &post(2, "origin: http://evil.example\r\n"));
        assert!(foreign.starts_with("HTTP/1.1 403"), "{foreign}");
        let own = ask(serving(), &post(2, "origin: http://x\r\n"));
        assert!(own.starts_with("HTTP/1.1 200"), "{own}");
    }

    #[test]
    fn nodes_are_removed_unless_the_controller_or_the_origin_says_no() {
        let post = |node: i32, extra: &str| {
            format!(
                "POST /v1/nodes/{node}/decommission HTTP/1.1\r\nhost: x\r\n{extra}\
                 connection: close\r\ncontent-length: 0\r\n\r\n"
            )
        };
        let removed = ask(serving(), &post(2, ""));
        assert!(
            removed.contains(r#"{"node":2,"short_partitions":["t/0"]}"#),
            "{removed}"
        );
        let refused = ask(serving(), &post(9, ""));
        assert!(refused.starts_with("HTTP/1.1 409"), "{refused}");
        assert!(refused.contains(r#"{"error":"node 9 is up"}"#), "{refused}");
        let foreign = ask(serving(), &post(2, "origin: http://evil.example\r\n"));
        assert!(foreign.starts_with("HTTP/1.1 403"), "{foreign}");
    }

    #[test]
    fn a_taken_port_is_an_error_at_once() {
        let env = Env::real();
        let services = AdminServices {
            status: Arc::new(|| Box::pin(async { NodeStatus::default() })),
            lead: Arc::new(|_| Box::pin(async { Err(LeadError::TimedOut) })),
            decommission: Arc::new(|_| {
                Box::pin(async { Err(DecommissionError::Unanswered(String::new())) })
            }),
        };
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let first = start(&env, any, services.clone()).expect("a free port");
        let second = start(&env, first.addr(), services);
        assert_eq!(
            second.err().map(|e| e.kind()),
            Some(io::ErrorKind::AddrInUse)
        );
    }
}
