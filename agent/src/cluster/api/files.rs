//! Files that an access to an API server reads, now and later: tokens and certificates are renewed
//! while it is used.

use std::path::{Path, PathBuf};

use kube::config::{AuthInfo, Kubeconfig};

/// Where the ServiceAccount of a pod is mounted.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Variables that name the certificate authorities of the system.
const AUTHORITIES: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// What an access reads.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AccessFiles {
    /// Files and folders, as they are named.
    pub paths: Vec<PathBuf>,
    /// Whether a credential comes from a program that is run for it.
    pub runs_a_program: bool,
}

/// Of an access. A kubeconfig that cannot be read names nothing: whoever uses it says so.
pub fn files(kubeconfig: Option<&Path>) -> AccessFiles {
    let mut files = named_by(kubeconfig);
    let authorities = AUTHORITIES.into_iter().filter_map(std::env::var_os);
    files.paths.extend(authorities.map(PathBuf::from));
    files
}

/// What the access itself names.
fn named_by(kubeconfig: Option<&Path>) -> AccessFiles {
    let mut files = AccessFiles::default();
    let Some(path) = kubeconfig else {
        files.paths.push(SERVICE_ACCOUNT.into());
        return files;
    };
    files.paths.push(path.to_owned());
    if let Ok(read) = Kubeconfig::read_from(path) {
        files.add(&read);
    }
    files
}

impl AccessFiles {
    fn add(&mut self, kubeconfig: &Kubeconfig) {
        let clusters = kubeconfig
            .clusters
            .iter()
            .filter_map(|one| one.cluster.as_ref());
        let authorities = clusters.filter_map(|cluster| cluster.certificate_authority.clone());
        self.paths.extend(authorities.map(PathBuf::from));
        for user in kubeconfig
            .auth_infos
            .iter()
            .filter_map(|one| one.auth_info.as_ref())
        {
            let named = [&user.client_certificate, &user.client_key, &user.token_file];
            self.paths
                .extend(named.into_iter().flatten().map(PathBuf::from));
            self.runs_a_program |= runs_a_program(user);
        }
    }
}

fn runs_a_program(user: &AuthInfo) -> bool {
    user.exec.is_some() || user.auth_provider.is_some()
}

/// Folders in which a file may be replaced by another of its name, as tokens and certificates are
/// renewed: the file's own, and that of what it is a link to.
pub fn folders(path: &Path) -> Vec<PathBuf> {
    let absolute = std::path::absolute(path).ok();
    let target = path.canonicalize().ok();
    let parent = |file: PathBuf| file.parent().map(Path::to_owned).unwrap_or(file);
    let mut folders: Vec<_> = [absolute, target]
        .into_iter()
        .flatten()
        .map(parent)
        .collect();
    folders.dedup();
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kubeconfig: &str) -> AccessFiles {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        std::fs::write(&path, kubeconfig).unwrap();
        let mut found = named_by(Some(&path));
        found.paths.retain(|named| *named != path);
        for named in &mut found.paths {
            *named = named
                .strip_prefix(folder.path())
                .unwrap_or(named)
                .to_owned();
        }
        found
    }

    const HEAD: &str = "apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster:\n    \
        server: https://10.0.0.1\n    certificate-authority: /pki/ca.crt\nusers:\n- name: u\n  user:\n";

    #[test]
    fn every_file_that_is_named_is_found() {
        let user = "    client-certificate: own/tls.crt\n    client-key: own/tls.key\n    \
            tokenFile: /tokens/token\n";
        let found = of(&format!("{HEAD}{user}"));
        let named = ["/pki/ca.crt", "own/tls.crt", "own/tls.key", "/tokens/token"];
        assert_eq!(found.paths, named.map(PathBuf::from));
        assert!(!found.runs_a_program);
    }

    #[test]
    fn a_program_is_told() {
        let user = "    exec:\n      apiVersion: client.authentication.k8s.io/v1\n      \
            command: aws\n";
        assert!(of(&format!("{HEAD}{user}")).runs_a_program);
    }

    #[test]
    fn what_cannot_be_read_names_nothing() {
        assert_eq!(of("{"), AccessFiles::default());
    }

    #[test]
    fn a_link_is_followed_to_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let kept = root.join("kept");
        std::fs::create_dir(&kept).unwrap();
        std::fs::write(kept.join("token"), "").unwrap();
        std::os::unix::fs::symlink(kept.join("token"), root.join("token")).unwrap();
        assert_eq!(folders(&root.join("token")), [root.clone(), kept.clone()]);
        assert_eq!(folders(&kept.join("token")), [kept]);
    }
}
