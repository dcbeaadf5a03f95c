//! Echo server on the websocket code of the relay, for the fuzzing client of the Autobahn testsuite.
//!
//! Text messages are read with [`FrameReader`] and written with [`outbox`]. Reactions to control frames and to errors are
//! those of a [session](super::session). Binary messages are left out: the relay does not keep their content.

use std::process::Command;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::frame_reader::{ClientFrame, FrameReader};
use super::outbox;
use super::session::{SessionEnd, reject};
use crate::http::shared_budget::SharedBudget;

const BUDGET_BYTES: usize = 64 << 20;

/// How long a client may take to close the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs the program in `GRASPD_AUTOBAHN` with the URL of the echo server. The program checks the results.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the Autobahn testsuite: run .ci/suites/run autobahn"]
async fn echo_server_for_the_autobahn_testsuite() {
    let program = std::env::var("GRASPD_AUTOBAHN").expect("run .ci/suites/run autobahn");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("cannot listen");
    let url = format!("ws://{}", listener.local_addr().expect("no address"));
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(serve(socket));
        }
    });
    let status = tokio::task::spawn_blocking(move || Command::new(program).arg(url).status())
        .await
        .expect("the thread panicked")
        .expect("cannot run the testsuite");
    assert!(status.success(), "the testsuite ended with {status}");
}

async fn serve(mut socket: TcpStream) {
    if !upgrade(&mut socket).await {
        return;
    }
    let mut reader = FrameReader::new(SharedBudget::new(BUDGET_BYTES, BUDGET_BYTES), None);
    let end = echo(&mut socket, &mut reader).await;
    let close = async {
        match end {
            SessionEnd::CloseReceived(payload) => {
                let mut frame = Vec::new();
                outbox::push_control_frame(&mut frame, outbox::CLOSE, &payload);
                let _ = socket.write_all(&frame).await;
            }
            SessionEnd::Reject(code, reason) => reject(&mut socket, code, reason).await,
            SessionEnd::Disconnected | SessionEnd::Close(..) => {}
        }
    };
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, close).await;
}

/// Answers the handshake. Returns whether it was valid.
async fn upgrade(socket: &mut TcpStream) -> bool {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match socket.read_u8().await {
            Ok(byte) => request.push(byte),
            Err(_) => return false,
        }
    }
    let request = String::from_utf8_lossy(&request);
    let headers = request.lines().filter_map(|line| line.split_once(": "));
    let Some((_, key)) = headers.into_iter().find(|(name, _)| name.eq_ignore_ascii_case("sec-websocket-key")) else {
        return false;
    };
    let accept = derive_accept_key(key.as_bytes());
    let response = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    );
    socket.write_all(response.as_bytes()).await.is_ok()
}

async fn echo(socket: &mut TcpStream, reader: &mut FrameReader) -> SessionEnd {
    loop {
        let mut out = Vec::new();
        match reader.next(socket).await {
            Ok(ClientFrame::Text(text)) => outbox::push_frame(&mut out, &[text.as_bytes()]),
            Ok(ClientFrame::Ping(payload)) => outbox::push_control_frame(&mut out, outbox::PONG, &payload),
            Ok(ClientFrame::Binary | ClientFrame::Pong) => {}
            Ok(ClientFrame::Close(payload)) => return SessionEnd::CloseReceived(payload),
            Err(error) => return error.into(),
        }
        if socket.write_all(&out).await.is_err() {
            return SessionEnd::Disconnected;
        }
    }
}
