//! Renders a load as a Kubernetes manifest: the controller as a job with a service, agents as an indexed job.
//!
//! Both run the same program. Agents find the controller by the service's name and authenticate with the token from a
//! secret; the index of each pod is the portion that it takes. Other engines that run numbered copies need the same
//! three facts.

use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;

use super::token::FleetToken;
use crate::{Error, Result};

/// The inputs of a manifest.
#[derive(Debug)]
pub struct KubernetesManifest<'a> {
    /// The image that holds the program as its entry point.
    pub image: &'a str,
    /// Number of agents.
    pub agent_count: usize,
    /// Arguments of the controller after `lab run PLAN`.
    pub arguments: &'a [String],
    /// The path of the plan.
    pub plan: &'a Path,
    /// Additional files: their names and their paths.
    pub files: &'a [(String, PathBuf)],
    /// Time limit for the controller and its agents to wait for each other.
    pub connect_timeout: Duration,
    /// The secret that controller and agents share.
    pub token: &'a FleetToken,
}

/// The port that the controller listens on.
const CONTROLLER_PORT: u16 = 7410;
/// Maximum payload of a config map in bytes, less the overhead of its other fields.
const MAX_CONFIG_MAP_BYTES: usize = 950_000;

/// Returns the manifest.
///
/// # Errors
/// [`Error::UnusableInput`] for files that a config map cannot hold; [`Error::FileAccess`].
pub fn render_manifest(manifest: &KubernetesManifest<'_>) -> Result<String> {
    let plan = manifest.plan.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut files = vec![(plan.clone(), manifest.plan.to_owned())];
    files.extend(manifest.files.iter().cloned());
    let mut data = String::new();
    let mut items = String::new();
    for (number, (name, path)) in files.iter().enumerate() {
        let is_below =
            Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
        if !is_below {
            return Err(Error::UnusableInput(format!(
                "`{name}` is not below the plan's folder, so a manifest cannot contain it"
            )));
        }
        let bytes = std::fs::read(path).map_err(|source| Error::read_failed(path, source))?;
        let text = base64::engine::general_purpose::STANDARD.encode(bytes);
        writeln!(data, "  file-{number}: {text}").ok();
        writeln!(items, "            - {{key: file-{number}, path: {}}}", quote_yaml(name)).ok();
    }
    if data.len() > MAX_CONFIG_MAP_BYTES {
        return Err(Error::UnusableInput(format!(
            "the plan and its files take {} bytes; a config map holds 1 MiB, so put them into a volume and mount it at /load",
            data.len()
        )));
    }
    let mut words = vec!["lab".to_owned(), "run".to_owned(), format!("/load/{plan}")];
    words.extend(["--agents".to_owned(), manifest.agent_count.to_string()]);
    words.extend(["--listen".to_owned(), format!("0.0.0.0:{CONTROLLER_PORT}")]);
    words.extend(["--token-file".to_owned(), "/token/token".to_owned()]);
    let wait = format!("{}s", manifest.connect_timeout.as_secs().max(1));
    words.extend(["--agent-wait".to_owned(), wait.clone()]);
    words.extend(manifest.arguments.iter().cloned());
    let words: Vec<String> = words.iter().map(|argument| quote_yaml(argument)).collect();
    Ok(MANIFEST_TEMPLATE
        .replace("{data}", data.trim_end())
        .replace("{items}", items.trim_end())
        .replace("{token}", manifest.token.reveal())
        .replace("{image}", &quote_yaml(manifest.image))
        .replace("{agents}", &manifest.agent_count.to_string())
        .replace("{wait}", &wait)
        .replace("{port}", &CONTROLLER_PORT.to_string())
        .replace("{words}", &words.join(", ")))
}

/// Quotes a string as JSON, because every JSON string is valid YAML.
fn quote_yaml(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

const MANIFEST_TEMPLATE: &str = "\
# kubectl apply -f this; kubectl wait --for=condition=complete job/tympan-lab; kubectl logs job/tympan-lab
apiVersion: v1
kind: Secret
metadata: {name: tympan-lab}
stringData:
  token: {token}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: tympan-lab}
binaryData:
{data}
---
apiVersion: v1
kind: Service
metadata: {name: tympan-lab}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {job-name: tympan-lab}
  ports: [{port: {port}}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: tympan-lab}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: controller
          image: {image}
          args: [{words}]
          ports: [{containerPort: {port}}]
          volumeMounts:
            - {name: load, mountPath: /load, readOnly: true}
            - {name: token, mountPath: /token, readOnly: true}
      volumes:
        - name: load
          configMap:
            name: tympan-lab
            items:
{items}
        - name: token
          secret: {secretName: tympan-lab}
---
apiVersion: batch/v1
kind: Job
metadata: {name: tympan-lab-agents}
spec:
  completionMode: Indexed
  completions: {agents}
  parallelism: {agents}
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      # Agents on one machine would measure each other.
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector: {matchLabels: {job-name: tympan-lab-agents}}
      containers:
        - name: agent
          image: {image}
          args: [lab, agent, \"tympan-lab:{port}\", --token-file, /token/token, --wait, {wait}]
          env:
            - name: TYMPAN_LAB_INDEX
              valueFrom:
                fieldRef: {fieldPath: \"metadata.annotations['batch.kubernetes.io/job-completion-index']\"}
          volumeMounts:
            - {name: token, mountPath: /token, readOnly: true}
      volumes:
        - name: token
          secret: {secretName: tympan-lab}
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_carries_plan_data_and_token() {
        let folder = tempfile::tempdir().unwrap();
        let plan = folder.path().join("a \"plan\".jmx");
        std::fs::write(&plan, "<x/>").unwrap();
        let rows = folder.path().join("users.csv");
        std::fs::write(&rows, "a,b\n").unwrap();
        let token = FleetToken::new([1; 32]);
        let text = render_manifest(&KubernetesManifest {
            image: "registry/tympan:1",
            agent_count: 20,
            arguments: &["-Jthreads=100".to_owned()],
            plan: &plan,
            files: &[("data/users.csv".to_owned(), rows.clone())],
            connect_timeout: Duration::from_secs(600),
            token: &token,
        })
        .unwrap();
        for expected in [
            "  file-0: PHgvPg==",
            "  file-1: YSxiCg==",
            "            - {key: file-0, path: \"a \\\"plan\\\".jmx\"}",
            "            - {key: file-1, path: \"data/users.csv\"}",
            "args: [\"lab\", \"run\", \"/load/a \\\"plan\\\".jmx\", \"--agents\", \"20\", \"--listen\", \"0.0.0.0:7410\", \"--token-file\", \"/token/token\", \"--agent-wait\", \"600s\", \"-Jthreads=100\"]",
            "--token-file, /token/token, --wait, 600s]",
            "completions: 20",
            "image: \"registry/tympan:1\"",
            "clusterIP: None",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        assert_eq!(text.matches(token.reveal()).count(), 1);
        let outside = render_manifest(&KubernetesManifest {
            image: "i",
            agent_count: 1,
            arguments: &[],
            plan: &plan,
            files: &[("../users.csv".to_owned(), rows)],
            connect_timeout: Duration::from_secs(600),
            token: &token,
        });
        assert!(outside.unwrap_err().to_string().contains("not below the plan's folder"));
    }
}
