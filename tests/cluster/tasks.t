#!/bin/bash
# What the tasks of a job find in their environment.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"
start_cluster --nodes "$nodes"
plugin required
home=$state/home/alice

# Prints "NODE VARIABLE=value ..." for every task, sorted by node.
cat > show <<'SHOW'
#!/bin/sh
echo $(hostname) $(env | grep '^GRADCOMP' | grep -v '^GRADCOMP_\(BUILD\|SRC\|SECURITY_SECRET\)=' | sort)
SHOW
chmod 755 show
tasks () { on srun -Q "$@" "$tmp/show" 2>&1 | sort; }

is 'no option: nothing' "$(tasks "-wn[1-2]")" 'n1
n2'
is 'one option, on every node' "$(tasks -N4 --gradcomp=topk:density=0.5)" "$(for k in 1 2 3 4; do
	echo "n$k GRADCOMP=topk:density=0.5 GRADCOMP_OPTIONS=compressor"
done)"
is 'all options' "$(tasks -wn1 --gradcomp=topk --gradcomp-collective=tree --gradcomp-report=/r.json)" \
	'n1 GRADCOMP=topk GRADCOMP_COLLECTIVE=tree GRADCOMP_OPTIONS=compressor collective report GRADCOMP_REPORT=/r.json'
is 'the last value of an option counts' "$(tasks -wn1 --gradcomp=topk --gradcomp=powersgd)" \
	'n1 GRADCOMP=powersgd GRADCOMP_OPTIONS=compressor'
is 'a relative report is in the working directory' "$(tasks -wn1 -D "$home" --gradcomp=topk --gradcomp-report=r.json)" \
	"n1 GRADCOMP=topk GRADCOMP_OPTIONS=compressor report GRADCOMP_REPORT=$home/r.json"
is 'schedule and record' "$(tasks -wn1 -D "$home" --gradcomp=topk --gradcomp-schedule=mgwfbp --gradcomp-record=m.ini)" \
	"n1 GRADCOMP=topk GRADCOMP_OPTIONS=compressor schedule record GRADCOMP_RECORD=$home/m.ini GRADCOMP_SCHEDULE=mgwfbp"
mkdir "$home/50%done"
is 'a % in the name of that directory is no %j' "$(tasks -wn1 -D "$home/50%done" --gradcomp=topk --gradcomp-report=r.json)" \
	"n1 GRADCOMP=topk GRADCOMP_OPTIONS=compressor report GRADCOMP_REPORT=$home/50%%done/r.json"
is 'none is a compressor' "$(tasks -wn1 --gradcomp=none)" 'n1 GRADCOMP=none GRADCOMP_OPTIONS=compressor'
is 'off: nothing' "$(tasks -wn1 --gradcomp=off --gradcomp-collective=ring --gradcomp-report=x)" n1
is 'a value with blanks and quotes arrives as it is' \
	"$(tasks -wn1 --gradcomp=topk "--gradcomp-report=/a  \"b\" 'c' \$(id) ü.json")" \
	"n1 GRADCOMP=topk GRADCOMP_OPTIONS=compressor report GRADCOMP_REPORT=/a \"b\" 'c' \$(id) ü.json"
is 'whether models are attached' "$(tasks -wn1 --gradcomp=topk --gradcomp-auto-attach=no)" \
	'n1 GRADCOMP=topk GRADCOMP_AUTO_ATTACH=no GRADCOMP_OPTIONS=compressor auto_attach'
is 'what becomes of a job that loses a rank' "$(tasks -wn1 --no-kill --kill-on-bad-exit=0 --gradcomp=topk --gradcomp-on-failure=shrink)" \
	'n1 GRADCOMP=topk GRADCOMP_ON_FAILURE=shrink GRADCOMP_OPTIONS=compressor on_failure'
long=/$(printf 'x%.0s' {1..4090})
# By its checksum, so that what srun says beside it is seen.
cat > checksum <<'SHOW'
#!/bin/sh
printf %s "$GRADCOMP_REPORT" | cksum
SHOW
chmod 755 checksum
is 'a value as long as a path may be' \
	"$(on srun -Q -wn1 --gradcomp=none "--gradcomp-report=$long" "$tmp/checksum" 2>&1)" "$(printf %s "$long" | cksum)"

export GRADCOMP=powersgd GRADCOMP_REPORT=/mine.json GRADCOMP_STREAMS=3 GRADCOMP_RECORD=/mine.ini
is 'record=none takes the record away' "$(tasks -wn1 --gradcomp-record=none)" \
	'n1 GRADCOMP=powersgd GRADCOMP_OPTIONS=record GRADCOMP_REPORT=/mine.json GRADCOMP_STREAMS=3'
unset GRADCOMP_RECORD
is 'no option: the environment of the user as it is' "$(tasks -wn1)" \
	'n1 GRADCOMP=powersgd GRADCOMP_REPORT=/mine.json GRADCOMP_STREAMS=3'
is 'an option wins over the environment' "$(tasks -wn1 --gradcomp=topk)" \
	'n1 GRADCOMP=topk GRADCOMP_OPTIONS=compressor GRADCOMP_REPORT=/mine.json GRADCOMP_STREAMS=3'
is 'report=none takes the report away' "$(tasks -wn1 --gradcomp-report=none)" \
	'n1 GRADCOMP=powersgd GRADCOMP_OPTIONS=report GRADCOMP_STREAMS=3'
is 'off takes the choice away' "$(tasks -wn1 --gradcomp=off)" 'n1 GRADCOMP_STREAMS=3'
unset GRADCOMP GRADCOMP_REPORT GRADCOMP_STREAMS

# The package stands before the user's own path, once, and for those who ask for gradcomp.
cat > path <<'PATHS'
#!/bin/sh
echo "$(hostname) ${PYTHONPATH-unset}"
PATHS
chmod 755 path
path () { on srun -Q -wn1 "$@" "$tmp/path" 2>&1; }
is 'no option: no PYTHONPATH' "$(path)" 'n1 unset'
is 'a compressor: the package' "$(path --gradcomp=topk)" "n1 $tmp/python"
is 'only a report: none' "$(GRADCOMP=topk path --gradcomp-report=r)" 'n1 unset'
is 'auto-attach=no: none' "$(path --gradcomp=topk --gradcomp-auto-attach=no)" 'n1 unset'
export PYTHONPATH=/mine:/yours
is 'no option: the own one' "$(path)" 'n1 /mine:/yours'
is 'the own one is behind it' "$(path --gradcomp=topk)" "n1 $tmp/python:/mine:/yours"
export PYTHONPATH=$tmp/python:/mine
is 'what an outer step has set is not set again' "$(path --gradcomp=topk)" "n1 $tmp/python:/mine"
is 'off leaves what is there' "$(path --gradcomp=off)" "n1 $tmp/python:/mine"
is 'and so does auto-attach=no' "$(path --gradcomp=topk --gradcomp-auto-attach=no)" "n1 $tmp/python:/mine"
unset PYTHONPATH
chmod 777 python
said=$(path --gradcomp=topk)
like 'a folder that others can write to is not taken' "$said" "$tmp/python is not there, or others than root could write to it"
like 'and the job runs' "$said" 'n1 unset'
chmod 755 python

# An allocation hands its options to every srun in it.
cat > steps <<'STEPS'
#!/bin/bash
#SBATCH --gradcomp=topk --gradcomp-collective=tree
#SBATCH -wn1
for more in "" --gradcomp=powersgd\ --gradcomp-collective=ring --gradcomp=none --gradcomp=off; do
	srun -Q -n1 $more "${0%/*}/show" 2>&1 | sed "s/^/${more:-inherited}: /"
done
STEPS
sed -i "s|\${0%/\*}|$tmp|" steps
chmod 755 steps
want='inherited: n1 GRADCOMP=topk GRADCOMP_COLLECTIVE=tree GRADCOMP_OPTIONS=compressor collective
--gradcomp=powersgd --gradcomp-collective=ring: n1 GRADCOMP=powersgd GRADCOMP_COLLECTIVE=ring GRADCOMP_OPTIONS=compressor collective
--gradcomp=none: srun: error: gradcomp: none does not work with tree
--gradcomp=off: n1'
check 'a batch script' on sbatch --wait -wn1 -o "$home/script" --gradcomp=topk show
is 'a batch script: finds them itself' "$(cat "$home/script")" 'n1 GRADCOMP=topk GRADCOMP_OPTIONS=compressor'
check 'sbatch' on sbatch --wait -o "$home/out" steps
is 'sbatch: #SBATCH options reach every srun, which may override them' "$(cat "$home/out")" "$want"
is 'salloc: the same' "$(on salloc -wn1 --gradcomp=topk --gradcomp-collective=tree "$tmp/steps" 2>/dev/null)" "$want"

check 'a job array' on sbatch --wait -a 1-3 -o "$home/array.%a" --gradcomp=topk --wrap "srun -n1 $tmp/show"
is 'a job array: every job of it' "$(sed 's/^n. //' "$home"/array.*)" "$(for _ in 1 2 3; do
	echo 'GRADCOMP=topk GRADCOMP_OPTIONS=compressor'
done)"

# Slurm 22.05's pmix module can hang in srun at the end of a heterogeneous step
# (pmixp_abort_agent_stop joins one thread twice).
is 'heterogeneous: to each its own' \
	"$(on srun --mpi=none -wn1 --gradcomp=topk --gradcomp-collective=tree "$tmp/show" : --mpi=none -wn2 --gradcomp=powersgd "$tmp/show" 2>/dev/null | sort)" \
	'n1 GRADCOMP=topk GRADCOMP_COLLECTIVE=tree GRADCOMP_OPTIONS=compressor collective
n2 GRADCOMP=powersgd GRADCOMP_OPTIONS=compressor'
is 'heterogeneous: none for one' \
	"$(on srun --mpi=none -wn1 --gradcomp=topk "$tmp/show" : --mpi=none -wn2 "$tmp/show" 2>/dev/null | sort)" \
	'n1 GRADCOMP=topk GRADCOMP_OPTIONS=compressor
n2'
is 'heterogeneous: the same for both' \
	"$(on srun --mpi=none -wn1 --gradcomp=topk "$tmp/show" : --mpi=none -wn2 --gradcomp=topk "$tmp/show" 2>/dev/null | sort)" \
	'n1 GRADCOMP=topk GRADCOMP_OPTIONS=compressor
n2 GRADCOMP=topk GRADCOMP_OPTIONS=compressor'
refuse 'heterogeneous: a mistake in the second component' \
	on srun --mpi=none -wn1 --gradcomp=topk "$tmp/show" : --mpi=none -wn2 --gradcomp=nope "$tmp/show"
like 'heterogeneous: is named' "$said" "gradcomp: no compressor 'nope'"
refuse 'heterogeneous sbatch: cannot keep two apart' \
	on sbatch -N1 --gradcomp=topk : -N1 --gradcomp=powersgd show
like 'heterogeneous sbatch: says what to do' "$said" 'give them all the same, or start each with its own srun'

# Two jobs of two users on one node at one time.
as bob srun -Q -n1 -wn1 --gradcomp=topk sh -c "sleep 1; $tmp/show" > bob.out 2>&1 &
is 'two jobs on a node: alice' "$(tasks -wn1 -n1 --gradcomp=powersgd)" \
	'n1 GRADCOMP=powersgd GRADCOMP_OPTIONS=compressor'
wait $!
is 'two jobs on a node: bob' "$(cat bob.out)" 'n1 GRADCOMP=topk GRADCOMP_OPTIONS=compressor'
is 'root' "$(as root srun -n1 -wn1 --gradcomp=topk "$tmp/show")" 'n1 GRADCOMP=topk GRADCOMP_OPTIONS=compressor'
is 'without MPI' "$(tasks -n1 -wn1 --mpi=none --gradcomp=topk)" 'n1 GRADCOMP=topk GRADCOMP_OPTIONS=compressor'

# Direct connections between slurmstepds lose a race now and then unless they are root's.
# shellcheck disable=SC2016 # expanded by the task
direct () { as "$1" srun -n1 "${@:2}" sh -c 'echo ${SLURM_PMIX_DIRECT_CONN-unset}'; }
is 'PMIx through the slurmds' "$(direct alice --gradcomp=none)" false
is 'PMIx: not for root' "$(direct root --gradcomp=none)" unset
is 'PMIx: not without gradcomp' "$(direct alice) $(direct alice --gradcomp=off)" 'unset unset'
is 'PMIx: GRADCOMP alone does it, too' "$(GRADCOMP=none direct alice) $(GRADCOMP=powersgd:rank=4 direct alice)" 'false false'
is 'PMIx: unless it is empty or off, or the option is' \
	"$(GRADCOMP='' direct alice) $(GRADCOMP=off direct alice) $(GRADCOMP=none direct alice --gradcomp=off)" 'unset unset unset'
is 'PMIx: the user wins' "$(SLURM_PMIX_DIRECT_CONN=true direct alice --gradcomp=none)" true

# What nobody typed: values that came another way than through a checked option.
SLURM_SPANK__SLURM_SPANK_OPTION_gradcomp_gradcomp=nope refuse 'an inherited value is checked too' on srun -n1 true
like 'an inherited value: named' "$said" "no compressor 'nope'"
GRADCOMP_COMPONENTS=junk check 'a foreign GRADCOMP_COMPONENTS is ignored' on srun -n1 --gradcomp=topk true

# The helper is asked once a command, and not at all without the option.
export STAND_IN_LOG=$tmp/asked
: > asked
chmod 666 asked
tasks "-wn[1-2]" > /dev/null
is 'no option: no helper' "$(cat asked)" ""
tasks "-wn[1-2]" --gradcomp=topk --gradcomp-report=r --gradcomp-schedule=single --gradcomp-record=m > /dev/null
is 'options: the helper is asked once' "$(cat asked)" '--compressor topk --report r --schedule single --record m'
tasks -wn1 --gradcomp=off > /dev/null
is 'off: no helper' "$(wc -l < asked)" 1
all_idle 'every node is idle'
done_testing
