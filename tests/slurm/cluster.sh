#!/usr/bin/env bash
# A real SLURM cluster on this one machine, for the tests: one node, two GPUs that exist by name only.
#
#   cluster.sh install   what is missing of the Debian packages (root)
#   cluster.sh start     configure and start munged, slurmctld and slurmd; wait until the node is idle
#   cluster.sh stop      cancel all jobs, stop the three, take the configuration away
#
# Everything lives in one folder, LAMINA_CLUSTER (default: lamina-cluster in the folder for temporary files), but for
# three links in /etc/slurm, where job steps look for their configuration.
set -euo pipefail

HOME_OF_CLUSTER=${LAMINA_CLUSTER:-${TMPDIR:-/tmp}/lamina-cluster}
NODE=$(hostname -s)
SOCKET=$HOME_OF_CLUSTER/run/munge.socket
CONTROLLER_PORT=17817
NODE_PORT=17818
# Jobs wait for the CPU rather than for each other: the node claims more cores than the machine has.
CPUS=16
MEMORY_MB=$(awk '/^MemTotal/ {print int($2 / 1024 * 0.9)}' /proc/meminfo)
CONFIGURATION=(slurm.conf gres.conf cgroup.conf)
export PATH=$PATH:/usr/sbin:/sbin

say() { echo "cluster.sh: $*" >&2; }

# pid file of a daemon, whose name it has. A killed daemon leaves it behind, and the number may be another process's now.
runs() {
    local process
    process=/proc/$(cat "$1" 2>/dev/null) || return
    [[ -e $process/exe && $(<"$process/comm") == "$(basename "$1" .pid)" ]]
}

until_true() { # seconds, what is waited for, command …
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" &>/dev/null; do
        if ((SECONDS > end)); then
            say "waited in vain for $what; the logs are in $HOME_OF_CLUSTER/log"
            return 1
        fi
        sleep 0.2
    done
}

install() {
    local missing=() package
    for package in slurm-wlm munge; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    say "installing ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

configure() {
    mkdir -p "$HOME_OF_CLUSTER"/{etc,run,log,state,spool}
    # munged trusts a key only if nobody else can read it.
    if [[ ! -s $HOME_OF_CLUSTER/etc/munge.key ]]; then
        (umask 077 && head -c 1024 /dev/urandom >"$HOME_OF_CLUSTER/etc/munge.key")
    fi
    # A GPU must be a character device, or jobs get no CUDA_VISIBLE_DEVICES. Nothing ever opens these two.
    cat >"$HOME_OF_CLUSTER/etc/gres.conf" <<-END
	NodeName=$NODE Name=gpu Type=fake File=/dev/null Flags=nvidia_gpu_env
	NodeName=$NODE Name=gpu Type=fake File=/dev/zero Flags=nvidia_gpu_env
	END
    cat >"$HOME_OF_CLUSTER/etc/cgroup.conf" <<-END
	ConstrainCores=no
	ConstrainRAMSpace=no
	ConstrainDevices=no
	END
    cat >"$HOME_OF_CLUSTER/etc/slurm.conf" <<-END
	ClusterName=lamina
	SlurmctldHost=$NODE(127.0.0.1)
	SlurmctldPort=$CONTROLLER_PORT
	SlurmdPort=$NODE_PORT
	SlurmUser=root
	SlurmdUser=root
	AuthType=auth/munge
	CredType=cred/munge
	AuthInfo=socket=$SOCKET
	SlurmctldPidFile=$HOME_OF_CLUSTER/run/slurmctld.pid
	SlurmdPidFile=$HOME_OF_CLUSTER/run/slurmd.pid
	SlurmctldLogFile=$HOME_OF_CLUSTER/log/slurmctld.log
	SlurmdLogFile=$HOME_OF_CLUSTER/log/slurmd.log
	StateSaveLocation=$HOME_OF_CLUSTER/state
	SlurmdSpoolDir=$HOME_OF_CLUSTER/spool
	MpiDefault=none
	SwitchType=switch/none
	# Processes are followed and measured through /proc: a container has no cgroups to give away.
	ProctrackType=proctrack/linuxproc
	TaskPlugin=task/none
	JobAcctGatherType=jobacct_gather/linux
	JobAcctGatherFrequency=task=1
	JobAcctGatherParams=OverMemoryKill
	AccountingStorageType=accounting_storage/none
	# Without accounting, squeue is what tells Snakemake how a job ended: keep ended jobs in its list.
	MinJobAge=900
	KillWait=3
	ReturnToService=2
	SlurmdParameters=config_overrides
	SelectType=select/cons_tres
	SelectTypeParameters=CR_Core_Memory
	DefMemPerCPU=256
	SchedulerType=sched/backfill
	SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=2
	GresTypes=gpu
	NodeName=$NODE NodeAddr=127.0.0.1 CPUs=$CPUS Boards=1 SocketsPerBoard=1 CoresPerSocket=$CPUS ThreadsPerCore=1 RealMemory=$MEMORY_MB Gres=gpu:fake:2 State=UNKNOWN
	PartitionName=cpu Nodes=$NODE Default=YES MaxTime=24:00:00 DefaultTime=00:10:00 State=UP
	PartitionName=gpu Nodes=$NODE Default=NO MaxTime=24:00:00 DefaultTime=00:10:00 State=UP
	END
    mkdir -p /etc/slurm
    local name
    for name in "${CONFIGURATION[@]}"; do
        if [[ -e /etc/slurm/$name && $(readlink "/etc/slurm/$name") != "$HOME_OF_CLUSTER/etc/$name" ]]; then
            say "/etc/slurm/$name belongs to a cluster of this machine; refusing to replace it"
            return 1
        fi
        ln -sfn "$HOME_OF_CLUSTER/etc/$name" "/etc/slurm/$name"
    done
}

ready() { sinfo --noheader --nodes "$NODE" --format %T | grep -Eqx 'idle|mixed|allocated'; }

start() {
    ((EUID == 0)) || { say "must be root"; return 1; }
    configure
    if ! runs "$HOME_OF_CLUSTER/run/munged.pid"; then
        rm -f "$SOCKET"*
        munged --key-file="$HOME_OF_CLUSTER/etc/munge.key" --socket="$SOCKET" \
            --pid-file="$HOME_OF_CLUSTER/run/munged.pid" --log-file="$HOME_OF_CLUSTER/log/munged.log" \
            --seed-file="$HOME_OF_CLUSTER/run/munge.seed"
    fi
    until_true 10 munged munge --no-input --socket="$SOCKET"
    # Jobs of a cluster that was killed would be restored, and would keep the GPUs.
    runs "$HOME_OF_CLUSTER/run/slurmctld.pid" || slurmctld -c
    until_true 20 slurmctld sh -c 'scontrol ping | grep -q "is UP"'
    runs "$HOME_OF_CLUSTER/run/slurmd.pid" || slurmd -N "$NODE"
    until_true 30 "node $NODE" ready
    say "up: $(sinfo --noheader --format '%P %T, %c CPUs, %m MB, %G' | paste -sd ';')"
}

end_of() { # pid file, seconds before SIGKILL
    if runs "$1"; then
        local pid end=$((SECONDS + $2))
        pid=$(<"$1")
        kill "$pid"
        while kill -0 "$pid" 2>/dev/null; do
            ((SECONDS <= end)) || kill -KILL "$pid" 2>/dev/null || true
            sleep 0.2
        done
    fi
    rm -f "$1"
}

stop() {
    if runs "$HOME_OF_CLUSTER/run/slurmctld.pid"; then
        scancel --user=root || true
        until_true 20 "the end of all jobs" sh -c '[ -z "$(squeue --noheader)" ]' || true
    fi
    end_of "$HOME_OF_CLUSTER/run/slurmd.pid" 10
    end_of "$HOME_OF_CLUSTER/run/slurmctld.pid" 15
    end_of "$HOME_OF_CLUSTER/run/munged.pid" 5
    local name
    for name in "${CONFIGURATION[@]}"; do
        if [[ $(readlink "/etc/slurm/$name") == "$HOME_OF_CLUSTER/etc/$name" ]]; then
            rm "/etc/slurm/$name"
        fi
    done
    rm -rf "$HOME_OF_CLUSTER"/{state,spool,run}
    say "down"
}

case ${1:-} in
    install | start | stop) "$1" ;;
    *)
        sed -n '2,9s/^# \?//p' "$0"
        exit 2
        ;;
esac
