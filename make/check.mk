# Tests in tiers and in builds of their own, and what looks at the sources.

# CHECK_TESTS: patterns with one '*' each. `make check` with them runs those of all tiers.
CHECK_TESTS ?= *
CHECK_JOBS = 2
CHECK_TIMEOUT = 600
ALL_TESTS = $(TAP_SRC:%.c=%) $(call find,tests/*/*.t)
tier = $(filter $(subst *,%,$(shell sed -n 's/^$(1)  *\([^ ]*\).*/\1/p' $(srcdir)/tests/tiers)),$(ALL_TESTS))
TIER_cluster := $(call tier,cluster)
TIER_slow := $(call tier,slow)
# Those of `whole` do a part of their cases, and all of them in check-long.
TIER_whole := $(call tier,whole)
TIER_long := $(sort $(call tier,long) $(TIER_whole))
TIER_all := $(filter-out $(call tier,long),$(ALL_TESTS))
TIER_check := $(filter-out $(TIER_cluster) $(TIER_slow),$(TIER_all))
TIER_any := $(ALL_TESTS)
CHECKS = check check-cluster check-slow check-all check-long
selected = $(filter $(subst *,%,$(CHECK_TESTS)),$(TIER_$(1)))
SELECTED = $(sort $(foreach c,$(or $(filter $(CHECKS),$(MAKECMDGOALS)),check-all),$(call selected,$(call tier_of,$(c)))))
tier_of = $(if $(and $(filter check,$(1)),$(filter-out *,$(CHECK_TESTS))),any,$(1:check-%=%))
check-long: export WHOLE = yes
TEST_ENV = GRADCOMP_BUILD=$(B) GRADCOMP_SRC=$(abspath $(srcdir))

# Programs of others that the test in a virtual machine runs there.
VM_PROGRAMS = $(addprefix $(B)/tests/,unit/transport_links unit/transport_verbs unit/many_ranks fuzz/collectives)
check-programs: $(filter $(SELECTED:%=$(B)/%),$(TAP_PROGRAMS)) $(TEST_PLUGINS) $(if $(filter tests/vm/%,$(SELECTED)),$(VM_PROGRAMS)) \
	$(if $(filter tests/cluster/auto.t,$(SELECTED)),$(B)/bench/trainer) \
	$(if $(filter tests/fuzz/libfuzzer.t,$(SELECTED)),$(B)/tests/fuzz/plugins) \
	$(if $(filter tests/contract/huge.t,$(SELECTED)),$(B)/tests/contract/huge) \
	$(if $(filter tests/build/floors.t,$(SELECTED)),graph)
# All that is compiled for tests and bench, without linking it.
check-objects: $(call OBJ,$(TAP_SRC) $(SUPPORT_SRC) $(TEST_PLUGIN_SRC) $(BENCH_SRC))

# Said before anything is built.
$(foreach c,$(filter $(CHECKS),$(MAKECMDGOALS)),$(if $(call selected,$(call tier_of,$(c))),,$(error no test matches CHECK_TESTS='$(CHECK_TESTS)')))

$(CHECKS): all check-programs
	@$(TEST_ENV) $(srcdir)/tests/run -j $(CHECK_JOBS) -t $(CHECK_TIMEOUT) $(call selected,$(call tier_of,$@))

bench: all $(BENCH_PROGRAMS)
	@$(TEST_ENV) $(srcdir)/bench/run $(if $(findstring --prefix,$(BENCH_ARGS)),,--prefix '$(prefix)') $(BENCH_ARGS)

# Builds of their own, configured like this one but for CFLAGS and LDFLAGS and
# without nvcc, that run the tests which are programs. Warnings are none of their
# matter: of instrumented code gcc has false ones.
PROGRAM_TESTS = $(or $(filter-out *,$(CHECK_TESTS)),$(filter-out %.t $(TIER_slow),$(TIER_all)))
UNDEFINED = undefined,float-cast-overflow -fno-sanitize-recover=undefined,float-cast-overflow
SANITIZE_asan = -fsanitize=address,$(UNDEFINED)
SANITIZE_ubsan = -fsanitize=$(UNDEFINED)
SANITIZE_tsan = -fsanitize=thread
CONFIGURED = mkdir -p $(B)/$(1) && cd $(B)/$(1) && $(abspath $(srcdir))/configure $(CONFIGURE_ARGS) --disable-werror $(2) >configure.out
VARIANT = $(CONFIGURED) && $(MAKE) --no-print-directory check NVCC= CHECK_TESTS='$(PROGRAM_TESTS)' CHECK_TIMEOUT=1200

# Stack frames kept after a return are aligned to 32 bytes only by gcc before 14, where
# AVX-512 code relies on 64 (GCC bug 110027).
ASAN = detect_stack_use_after_return=0:strict_string_checks=1
SANITIZED = CFLAGS='-O1 -g -fno-omit-frame-pointer $(SANITIZE_$(1))' LDFLAGS='$(SANITIZE_$(1))'
check-asan check-ubsan check-tsan: check-%:
	+@ASAN_OPTIONS=$(ASAN) TSAN_OPTIONS=halt_on_error=1 UBSAN_OPTIONS=print_stacktrace=1; \
	export ASAN_OPTIONS TSAN_OPTIONS UBSAN_OPTIONS; $(call VARIANT,$*,$(call SANITIZED,$*))

# The shell tests of check and check-cluster with what check-asan has built. srun, slurmstepd and
# Python load it without being built so: hence the preload (of gcc's), and no search for leaks,
# of which they have their own. Tests kill programs by signals: those are the tests' matter.
# What is found anywhere is a file, since many a program's words are lost.
SCRIPT_TESTS = $(or $(filter-out *,$(CHECK_TESTS)),$(filter-out tests/build/% tests/long/% $(TIER_slow),$(filter %.t,$(ALL_TESTS))))
check-asan-scripts:
	+@$(call CONFIGURED,asan,$(call SANITIZED,asan)) && \
	$(MAKE) --no-print-directory all check-programs NVCC= CHECK_TESTS='$(SCRIPT_TESTS)' && \
	rm -rf found && mkdir -m 1777 found && status=0 && \
	GRADCOMP_BUILD=$(B)/asan GRADCOMP_SRC=$(abspath $(srcdir)) \
	LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=$(ASAN):detect_leaks=0:use_sigaltstack=0:handle_segv=0:handle_sigbus=0:log_path=$(B)/asan/found/asan \
	UBSAN_OPTIONS=print_stacktrace=1:handle_segv=0:handle_sigbus=0:log_path=$(B)/asan/found/ubsan \
	$(abspath $(srcdir))/tests/run -j $(CHECK_JOBS) -t 1200 $(SCRIPT_TESTS) || status=$$?; \
	if [ -n "$$(ls found)" ]; then head -n 30 found/*; echo "found by the sanitizers: see $(B)/asan/found" >&2; status=1; fi; exit $$status

VALGRIND = valgrind -q --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite,indirect
check-valgrind: all check-programs
	@command -v valgrind >/dev/null || { echo 'valgrind is missing (Debian, RPM: valgrind)' >&2; exit 1; }
	@$(TEST_ENV) $(srcdir)/tests/run -j $(CHECK_JOBS) -t 7200 -w '$(VALGRIND)' $(filter $(subst *,%,$(PROGRAM_TESTS)),$(TAP_SRC:%.c=%))

coverage:
	@command -v gcovr >/dev/null || { echo 'gcovr is missing (Debian, RPM: gcovr)' >&2; exit 1; }
	+@$(call VARIANT,coverage,CFLAGS='-O0 -g --coverage' LDFLAGS=--coverage)
	@cd $(srcdir) && gcovr -r . --object-directory $(B)/coverage/obj -e tests/ --txt $(B)/coverage/coverage.txt \
		--html-details $(B)/coverage/index.html && tail -n 3 $(B)/coverage/coverage.txt
	@echo "see $(B)/coverage/index.html"

# The public headers are also for nvcc; all kernels and what stands on CUDA and NCCL compile and link.
check-cuda: $(CUDA_SO) $(DEVICE_SO) $(filter %/nccl.so %/hier.so,$(PLUGINS))
	@$(if $(NVCC),,echo 'no CUDA compiler in this configuration' >&2; exit 1)
	$(Q)for h in $(call find,include/gradcomp/*.h include/gradcomp/sdk/*.h); do echo "  NVCC  $$h" && \
		$(NVCC) -I$(srcdir)/include -x cu -c -o /dev/null $(srcdir)/$$h || exit 1; done

LINT_C = $(LIB_SRC) $(PMIX_SRC) $(VERBS_SRC) $(NFS_SRC) $(PLUGIN_SRC) $(PLUGIN_COMMON_SRC) $(SDK_SRC) $(PMPI_SRC) $(SPANK_SRC) $(TOOL_SRC) $(CHECK_SRC) $(TEST_SRC) \
	$(BENCH_SRC) $(EXAMPLE_SRC) $(DEVICE_SRC) $(TEST_PLUGIN_SRC) \
	$(call find,examples/plugin/*.c)
LINT_CFLAGS = -include $(DEFAULTS) $(or $(OPENMPI_CFLAGS),$(MPICH_CFLAGS)) $(SLURM_CFLAGS) $(PMIX_CFLAGS) $(JANSSON_CFLAGS) $(CUDA_CFLAGS) $(NCCL_CFLAGS)
# What calls what: objects in which nothing has been inlined, in a folder of their own.
GRAPH_SRC = $(LIB_SRC) $(PMIX_SRC) $(VERBS_SRC) $(NFS_SRC) $(DEVICE_SRC) $(CHECK_SRC) $(TOOL_SRC)
graph:
	$(Q)mkdir -p $(B)/graph && ln -sf $(B)/gradcomp_config.h $(B)/graph/gradcomp_config.h
	+$(Q)$(MAKE) --no-print-directory -s Q_DEFAULT=@ B=$(B)/graph CFLAGS=-O0 CFLAGS_REQ='$(filter -std=% -fPIC,$(CFLAGS_REQ))' graph-objects
graph-objects: $(call OBJ,$(GRAPH_SRC))
	@:
lint: all graph
	@echo "lint: floors and cycles" && $(srcdir)/tests/floors $(B)
	@cd $(srcdir) && CC='$(CC)' SINCE='$(SINCE)' LINT_TOOLS='$(LINT_TOOLS)' tests/lint '$(CONFIG) -std=gnu11 $(subst $(srcdir)/,,$(INNER)) $(LINT_CFLAGS)' $(LINT_C)
