#!/usr/bin/env bash
# Runs the Python of .venv on another implementation of Vulkan than the system's lavapipe:
#     tools/drivers.sh mesa -m pytest tests/gpu/test_cooperative.py    # lavapipe of a newer Mesa: 16-bit matrices
#     tools/drivers.sh swiftshader -m vkconv check --all-ops           # the CPU driver that Debian's chromium brings
# Without arguments it sets up both. The newer Mesa, its C library and a validation layer that knows its extensions
# are Debian's own packages, unpacked into a cache: nothing is installed, no root is needed. Safe to repeat; does
# nothing when they are there. What cannot be had fails the run where CI=true; elsewhere a line says so, exit code 0.
# Environment: VKCONV_CACHE (where they are unpacked, default ~/.cache/vkconv).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

suite=trixie    # Debian 13; its backports have the Mesa
first=26.1      # whose lavapipe has 16-bit cooperative matrices
packages=(mesa-vulkan-drivers libvulkan1/$suite vulkan-validationlayers/$suite)

say() { printf 'drivers: %s\n' "$*" >&2; }
without() {     # DRIVER WHY
    say "$1 cannot be had: $2"
    [ "${CI:-}" != true ] || exit 1
    say "going on WITHOUT $1"
    exit 0
}

# --- Mesa, beside the system ------------------------------------------------------------------------------------------
# Where this machine takes Debian's packages from.
mirror() {
    local release
    release=$(. /etc/os-release && printf %s "${VERSION_CODENAME:-stable}")
    apt-get indextargets --no-release-info --format '$(RELEASE) $(REPO_URI)' 'Identifier: Packages' \
        | awk -v release="$release" '!found && ($1 == release || $1 ~ /^(old)*stable$/) { print $2; found = 1 }'
}

# Unpack it into a new folder whose final place is another one.
unpack_mesa() {     # FOLDER PLACE
    local folder=$1 place=$2 apt=$1/apt keyring=/usr/share/keyrings/debian-archive-keyring.gpg tool uri version found
    for tool in apt-get dpkg dpkg-deb; do
        command -v "$tool" >/dev/null || without mesa "there is no $tool here; it comes from Debian's packages"
    done
    [ -r "$keyring" ] || without mesa "there is no $keyring; the package debian-archive-keyring has it"
    uri=$(mirror)
    [ -n "$uri" ] || without mesa "no source of Debian's packages is set up in /etc/apt"
    mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$folder/root"
    : >"$apt/status"    # nothing is installed: all that is needed comes along, down to the C library
    printf "deb [signed-by=$keyring] $uri %s main\n" "$suite" "$suite-backports" >"$apt/sources.list"
    local options=(-qq -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null
        -o Dir::State="$apt" -o Dir::State::Lists="$apt/lists" -o Dir::State::Status="$apt/status"
        -o Dir::Cache="$apt" -o Dir::Cache::Archives="$apt/archives"
        -o APT::Architectures="$(dpkg --print-architecture)" -o APT::Sandbox::User=root
        -o APT::Update::Error-Mode=any -o Acquire::Languages=none -o Acquire::Retries=3)
    say "unpacking ${packages[*]}, as $suite-backports has them (60 MB, half a minute)"
    apt-get "${options[@]}" update \
        || without mesa "$suite and $suite-backports cannot be read from where this machine takes its packages"
    apt-get "${options[@]}" -y --no-install-recommends --download-only -t "$suite-backports" \
        install "${packages[@]}" >/dev/null || without mesa "${packages[*]} cannot be downloaded"
    version=$(dpkg-deb -f "$apt"/archives/mesa-vulkan-drivers_*.deb Version)
    dpkg --compare-versions "$version" ge "$first" \
        || without mesa "$suite-backports has $version, and only from $first on there are 16-bit matrices"
    for found in "$apt"/archives/*.deb; do dpkg-deb -x "$found" "$folder/root"; done
    rm -rf "$apt"
    found=$(cd "$folder" && find root/usr/lib -name libvulkan_lvp.so)
    [ -n "$found" ] || without mesa "mesa-vulkan-drivers $version has no lavapipe"
    printf '{"file_format_version": "1.0.0", "ICD": {"library_path": "%s", "api_version": "1.4.0"}}\n' \
        "$place/$found" >"$folder/icd.json"
    dirname "$found" >"$folder/libraries"
    printf '%s\n' "$version" >"$folder/version"
}

# A folder that is a virtual environment as .venv is, but that its programs start with the unpacked C library: Python
# takes the wrapper for its own executable, so that the processes that it starts are run in the same way.
make_mesa() {
    local cache=${VKCONV_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vkconv}/drivers key place fresh
    key=$(sed -n '/^suite=/,/^packages=/p; /^unpack_mesa/,/^}/p' "${BASH_SOURCE[0]}" | sha256sum | cut -c1-12)
    mkdir -p "$cache"
    place=$(cd "$cache" && pwd)/mesa-$key
    if [ ! -f "$place/version" ]; then
        fresh=$(mktemp -d "$cache/new.XXXXXX")
        trap "rm -rf '$fresh'" EXIT
        unpack_mesa "$fresh" "$place"
        chmod 755 "$fresh"
        mv -T "$fresh" "$place" 2>/dev/null || [ -f "$place/version" ]    # another run may have been faster
        rm -rf "$fresh"
    fi

    local venv=$root/build/drivers/mesa python own libraries
    mkdir -p "$venv/bin"
    python=$(readlink -f "$root/.venv/bin/python")
    libraries=$place/$(cat "$place/libraries")
    # Libraries that this Python brings itself, such as its own libpython, come before those of Debian.
    own=$(ldd "$python" | sed -n 's#.* => \(/[^ ]*\)/[^/ ]* (.*#\1#p' | sort -u \
        | awk '!/^(\/usr)?\/lib(64)?(\/|$)/' | paste -sd:)
    ln -sfn "$root/.venv/lib" "$venv/lib"
    cp "$root/.venv/pyvenv.cfg" "$venv/pyvenv.cfg"
    cat >"$venv/bin/.python" <<WRAPPER
#!/usr/bin/env bash
export VK_DRIVER_FILES='$place/icd.json' VK_ICD_FILENAMES='$place/icd.json'
export VK_LAYER_PATH='$place/root/usr/share/vulkan/explicit_layer.d' VK_LOADER_LAYERS_DISABLE='~implicit~'
exec '$(find "$libraries" -name 'ld-linux*.so.*')' --library-path '${own:+$own:}$libraries' --argv0 "\$0" '$python' "\$@"
WRAPPER
    chmod +x "$venv/bin/.python"
    mv "$venv/bin/.python" "$venv/bin/python"
    say "lavapipe of Mesa $(cat "$place/version"), in $place"
}

# --- SwiftShader, of the system's chromium ----------------------------------------------------------------------------
make_swiftshader() {
    local venv=$root/build/drivers/swiftshader icd=/usr/lib/chromium/vk_swiftshader_icd.json
    [ -r "$icd" ] || without swiftshader "there is no $icd; Debian's package chromium has it"
    mkdir -p "$venv/bin"
    cat >"$venv/bin/.python" <<WRAPPER
#!/usr/bin/env bash
export VK_DRIVER_FILES='$icd' VK_ICD_FILENAMES='$icd'
exec '$root/.venv/bin/python' "\$@"
WRAPPER
    chmod +x "$venv/bin/.python"
    mv "$venv/bin/.python" "$venv/bin/python"
    say "SwiftShader of chromium $(dpkg-query -W -f '${Version}' chromium 2>/dev/null || echo "in ${icd%/*}")"
}

[ -x "$root/.venv/bin/python" ] || { say "there is no .venv: run make setup"; exit 1; }
case ${1:-} in
    mesa | swiftshader)
        driver=$1
        shift
        "make_$driver"
        exec "$root/build/drivers/$driver/bin/python" "$@"
        ;;
    "")
        (make_mesa)
        (make_swiftshader)
        ;;
    *)
        say "there is no driver '$1': mesa or swiftshader"
        exit 2
        ;;
esac
