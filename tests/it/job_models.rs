//! Workflow models on the command line.

use crate::program::{Running, free_address, post, run, run_ok};

#[test]
fn a_model_that_cannot_be_started_is_reported_with_its_fault() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().to_str().unwrap();
    let address = free_address();
    let _running = Running::start(&["author", "--home", home, "--listen", &address.to_string()]);
    let password = std::fs::read_to_string(dir.path().join("initial-password")).unwrap();
    let model = "jcr:primaryType=cq:WorkflowModel&title=Review&nodes/s/type=START&nodes/s/title=s\
                 &nodes/p/type=PROCESS&nodes/p/title=Watermark\
                 &nodes/p/metaData/PROCESS=com.example.WatermarkProcess&nodes/e/type=END&nodes/e/title=e\
                 &transitions/a/from=s&transitions/a/to=p&transitions/b/from=p&transitions/b/to=e";
    let made = post(address, password.trim(), "/var/workflow/models/review", model);
    assert!(made.status < 300, "{}", made.text());
    let token = run_ok(&["user", "token", "admin", "--home", home]);
    let url = format!("http://{address}");
    let models = run(&["jobs", "models", "--url", &url, "--token", token.trim()]);
    let text = String::from_utf8(models.stdout).unwrap();
    assert_eq!(models.status.code(), Some(1), "{text}");
    let fault = "cannot be started: the step `Watermark` of `/var/workflow/models/review` names the unknown process \
                 `com.example.WatermarkProcess`; known processes are ";
    assert!(text.contains(fault), "{text}");
}
