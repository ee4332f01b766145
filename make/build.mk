# How objects, libraries, modules, plugins and programs are made.

CONFIG = -D_GNU_SOURCE= -include $(B)/gradcomp_config.h
# An include begins with the floor it is on: base/error.h, io/cache/lease.h, tools/commands.h.
ROOTS = -I$(srcdir)/include -I$(srcdir)/runtime -I$(srcdir)
INNER = $(ROOTS) \
	$(INIH_CFLAGS) $(XXHASH_CFLAGS) $(SODIUM_CFLAGS) $(SECCOMP_CFLAGS) $(MUNGE_CFLAGS)
SYSLIBS = -lm -ldl -lrt
# Objects are the same whatever folder they are made in. gcov looks for its files where they were made.
ANYWHERE = $(if $(PREFIX_MAP),$(if $(findstring --coverage,$(CFLAGS)),,-ffile-prefix-map=$(srcdir)=. -ffile-prefix-map=$(B)=.))
COMPILE = $(CC) $(CONFIG) $(INCLUDES) $(CPPFLAGS) $(CFLAGS_REQ) $(ANYWHERE) $(VISIBLE) $(CFLAGS) $(EXTRA) -MMD -MP -c -o $@ $<
LINK_EXE = $(CC) $(CFLAGS_REQ) $(CFLAGS) $(LDFLAGS_EXE) $(LDFLAGS_REQ) $(LDFLAGS)
LINK_SO = $(CC) -shared $(CFLAGS_REQ) $(CFLAGS) $(LDFLAGS_SO) $(LDFLAGS_REQ) $(LDFLAGS)
BUILD_RPATH = -Wl,-rpath,$(B)/lib

INCLUDES = $(INNER)
$(B)/obj/plugins/%.o: INCLUDES = -I$(srcdir)/include -I$(srcdir)
$(B)/obj/spank/%.o: INCLUDES = -I$(srcdir)/include -I$(srcdir) $(SLURM_CFLAGS)
$(B)/obj/tools/%.o: INCLUDES = $(ROOTS) $(JANSSON_CFLAGS)
$(B)/obj/examples/%.o: INCLUDES = -I$(srcdir)/include
$(B)/obj/runtime/bootstrap/pmix.o: INCLUDES = $(INNER) $(PMIX_CFLAGS)
$(B)/obj/runtime/transport/verbs/module/%.o: INCLUDES = $(INNER) $(VERBS_CFLAGS)
$(B)/obj/io/source/nfs/%.o: INCLUDES = $(INNER) $(NFS_CFLAGS)
%_avx2.o: EXTRA = -mavx2 -mfma -mf16c
%_avx512.o: EXTRA = -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl
$(B)/obj/plugins/compressors/zfp.o: EXTRA = $(ZFP_CFLAGS)
$(B)/obj/plugins/compressors/lossless/%.o: EXTRA = $(LZ4_CFLAGS) $(ZSTD_CFLAGS)

all: $(LIB_SO) $(LIB_A) $(SDK_A) $(PMIX_SO) $(VERBS_SO) $(NFS_SO) $(CUDA_SO) $(DEVICE_SO) $(PLUGINS) $(PMPI_SO) $(SPANK_SO) $(COMMAND) $(EXAMPLES) $(B)/gradcomp.pc $(B)/gradcomp-sdk.pc

$(B)/obj/%.o: $(srcdir)/%.c $(B)/gradcomp_config.h $(CONFIG_MK)
	$(call say,CC)
	$(Q)mkdir -p $(@D) && $(COMPILE)

# The plugins that a site gets which sets nothing are named in etc/gradcomp.conf.in alone.
DEFAULTS = $(B)/default_plugins.h
$(DEFAULTS): $(srcdir)/etc/gradcomp.conf.in $(srcdir)/make/build.mk
	$(call say,GEN)
	$(Q)for key in compressor:COMPRESSOR collective:COLLECTIVE device_collective:DEVICE_COLLECTIVE candidates:CANDIDATES; do \
		sed -n "s/^#\{0,1\}$${key%:*} = \(.*\)/#define DEFAULT_$${key#*:} \"\1\"/p" $<; done >$@; \
	[ $$(wc -l <$@) = 4 ] || { echo "$<: compressor, collective, device_collective and candidates must stand there once each" >&2; rm $@; exit 1; }
$(B)/obj/runtime/config/settings.o: $(DEFAULTS)
$(B)/obj/runtime/config/settings.o: EXTRA = -include $(DEFAULTS)

# What libgradcomp.so exports its version script says; the tests' library shows all of it.
$(call OBJ,$(LIB_SRC) $(SUPPORT_SRC)): VISIBLE = -fvisibility=default -fno-semantic-interposition
# A test's own pread() and the like stand before libc's for the library, too.
$(call OBJ,$(TAP_SRC)): VISIBLE = -fvisibility=default

$(LIB_A): $(call OBJ,$(LIB_SRC))
	$(call say,AR)
	$(Q)mkdir -p $(@D) && rm -f $@ && $(AR) rcs $@ $^

$(CHECK_A): $(call OBJ,$(CHECK_SRC))
	$(call say,AR)
	$(Q)mkdir -p $(@D) && rm -f $@ && $(AR) rcs $@ $^

$(LIB_SO).$(VERSION): $(call OBJ,$(LIB_SRC)) $(srcdir)/libgradcomp.map
	$(call say,LD)
	$(Q)mkdir -p $(@D) && $(LINK_SO) -Wl,-soname,libgradcomp.so.$(SOVERSION) \
		-Wl,--version-script=$(srcdir)/libgradcomp.map -o $@ $(filter %.o,$^) $(LIB_LIBS) $(LIBS) $(SYSLIBS)

$(LIB_SO): $(LIB_SO).$(VERSION)
	$(Q)ln -sf $(<F) $@.$(SOVERSION) && ln -sf $(<F) $@

$(B)/lib/gradcomp/bootstrap/pmix.so: $(call OBJ,$(PMIX_SRC)) $(LIB_A)
	$(call say,LD)
	$(Q)mkdir -p $(@D) && $(LINK_SO) -Wl,--exclude-libs,ALL -o $@ $^ $(PMIX_LIBS) $(LIBS) $(SYSLIBS)

$(B)/lib/gradcomp/transport/verbs.so: $(call OBJ,$(VERBS_SRC)) $(LIB_A)
	$(call say,LD)
	$(Q)mkdir -p $(@D) && $(LINK_SO) -Wl,--exclude-libs,ALL -o $@ $^ $(VERBS_LIBS) $(LIBS) $(SYSLIBS)

$(B)/lib/gradcomp/source/nfs.so: $(call OBJ,$(NFS_SRC)) $(LIB_A)
	$(call say,LD)
	$(Q)mkdir -p $(@D) && $(LINK_SO) -Wl,--exclude-libs,ALL -o $@ $^ $(NFS_LIBS) $(LIBS) $(SYSLIBS)

# Ranks must round alike: no contraction, denormals, division and roots as IEEE has
# them. The CUDA library is linked in, and called on first use only. What ptxas says of each
# kernel's registers and memory is kept for tests/cuda/registers.t.
NVCC_FLAGS = -std=c++17 -O3 --fmad=false -ftz=false -prec-div=true -prec-sqrt=true $(CUDA_CODE) \
	-Xcompiler '-O2 -fPIC -fvisibility=hidden -Wall -Wextra -Wno-unknown-pragmas' $(if $(findstring -Werror,$(CFLAGS_REQ)),-Werror all-warnings)
$(B)/obj/%.cu.o: $(srcdir)/%.cu $(CONFIG_MK)
	$(call say,NVCC)
	$(Q)mkdir -p $(@D) && { $(NVCC) $(NVCC_FLAGS) -Xptxas -v $(ROOTS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $< \
		2>$(@:.o=.ptxas); status=$$?; sed '/^ptxas info/d; /bytes stack frame/d' $(@:.o=.ptxas) >&2; exit $$status; }

$(B)/lib/gradcomp/operators/cuda.so: $(CUDA_SRC:%.cu=$(B)/obj/%.cu.o) $(LIB_A)
	$(call say,LD)
	$(Q)mkdir -p $(@D) && $(NVCC) -shared -cudart static -Xlinker --exclude-libs,ALL,--as-needed,-z,relro,-z,now,--wrap=__cudaRegisterFunction \
		-o $@ $^

# The CUDA runtime for what the C compiler makes: linked in, and called on first use only.
CUDART = $(filter -L%,$(CUDA_LIBS)) -lcudart_static -ldl -lrt -lpthread -Wl,--exclude-libs,ALL
$(B)/obj/runtime/device/cuda/%.o $(B)/obj/plugins/collectives/nccl.o $(B)/obj/plugins/collectives/nccl/%.o \
	$(B)/obj/plugins/collectives/hier/%.o: EXTRA = $(CUDA_CFLAGS) $(NCCL_CFLAGS)
# Both levels of hier may be on GPUs.
ifneq ($(WITH_NCCL),)
$(B)/obj/plugins/collectives/hier.o: EXTRA = -DHIER_ON_DEVICE
$(B)/lib/gradcomp/collectives/hier.so: $(call OBJ,$(filter plugins/collectives/nccl/%.c,$(PLUGIN_SRC)))
$(B)/lib/gradcomp/collectives/hier.so: PLUGIN_LIBS = $(CUDART)
endif

$(B)/lib/gradcomp/device/cuda.so: $(call OBJ,$(DEVICE_SRC))
	$(call say,LD)
	$(Q)mkdir -p $(@D) && $(LINK_SO) -o $@ $^ $(LIBS) $(CUDART)

# One plugin: its objects are those of NAME.c and of everything in NAME/.
define plugin_rule
$(B)/lib/gradcomp/$(1)/$(2).so: $(call OBJ,$(filter plugins/$(1)/$(2).c plugins/$(1)/$(2)/%.c,$(PLUGIN_SRC)))
endef
$(foreach n,$(COMPRESSORS),$(eval $(call plugin_rule,compressors,$(n))))
$(foreach n,$(COLLECTIVES),$(eval $(call plugin_rule,collectives,$(n))))

$(B)/lib/plugins.a: $(call OBJ,$(PLUGIN_COMMON_SRC))
	$(call say,AR)
	$(Q)mkdir -p $(@D) && rm -f $@ && $(AR) rcs $@ $^

# Its symbols are hidden, so that a plugin exports none of them and meets no other SDK.
$(SDK_A): $(call OBJ,$(SDK_SRC))
	$(call say,AR)
	$(Q)mkdir -p $(@D) && rm -f $@ && $(AR) rcs $@ $^

$(PLUGINS): $(PLUGIN_COMMON)
	$(call say,LD)
	$(Q)mkdir -p $(@D) && $(LINK_SO) -o $@ $(filter %.o,$^) $(PLUGIN_COMMON) $(PLUGIN_LIBS) $(LIBS) -lm
# It may bring an OpenMP runtime, which loses memory when it is unloaded.
$(B)/lib/gradcomp/compressors/zfp.so: PLUGIN_LIBS = $(ZFP_LIBS) -Wl,-z,nodelete
$(B)/lib/gradcomp/collectives/nccl.so: PLUGIN_LIBS = $(CUDART)
$(B)/lib/gradcomp/compressors/lossless.so: PLUGIN_LIBS = $(LZ4_LIBS) $(ZSTD_LIBS)

# MPI is the program's own, and libgradcomp is opened when it is wanted.
$(B)/obj/openmpi/%.o: INCLUDES = -I$(srcdir)/include $(OPENMPI_CFLAGS)
$(B)/obj/mpich/%.o: INCLUDES = -I$(srcdir)/include $(MPICH_CFLAGS)
define pmpi_rule
$(B)/obj/$(1)/%.o: $(srcdir)/%.c $(B)/gradcomp_config.h $(CONFIG_MK)
	$$(call say,CC)
	$$(Q)mkdir -p $$(@D) && $$(COMPILE)
$(B)/lib/gradcomp/pmpi/$(1).so: $(PMPI_SRC:%.c=$(B)/obj/$(1)/%.o)
	$$(call say,LD)
	$$(Q)mkdir -p $$(@D) && $$(LINK_SO) -o $$@ $$^ $$(LIBS) -ldl -lpthread
endef
$(foreach m,$(MPIS),$(eval $(call pmpi_rule,$(m))))

# Slurm's functions are found when Slurm loads it.
$(B)/lib/slurm/spank_gradcomp.so: LDFLAGS_SO =
$(B)/lib/slurm/spank_gradcomp.so: $(call OBJ,$(SPANK_SRC)) $(srcdir)/spank/spank_gradcomp.map
	$(call say,LD)
	$(Q)mkdir -p $(@D) && $(LINK_SO) -Wl,--version-script=$(srcdir)/spank/spank_gradcomp.map \
		-o $@ $(filter %.o,$^) $(LIBS)

# With all of the library in it: what is private needs no export.
$(B)/bin/gradcomp: $(call OBJ,$(TOOL_SRC)) $(CHECK_A) $(LIB_A)
	$(call say,LD)
	$(Q)mkdir -p $(@D) && $(LINK_EXE) -o $@ $^ $(LIB_LIBS) $(JANSSON_LIBS) $(SECCOMP_LIBS) $(LIBS) $(SYSLIBS)

$(B)/bench/scaling: $(call OBJ,tests/support/process_ranks.c)
$(BENCH_PROGRAMS): $(B)/%: $(B)/obj/%.o $(CHECK_A) $(PLUGIN_COMMON) $(LIB_A)
	$(call say,LD)
	$(Q)mkdir -p $(@D) && $(LINK_EXE) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LIB_LIBS) $(LIBS) $(SYSLIBS)

# The inside of the library and what tests share, linked once for all test programs.
INTERPOSED = $(srcdir)/tests/support/interposed.list
$(TEST_SO): $(call OBJ,$(LIB_SRC) $(filter-out $(INJECT_SRC),$(SUPPORT_SRC))) $(INTERPOSED)
	$(call say,LD)
	$(Q)mkdir -p $(@D) && $(LINK_SO) -Wl,-Bsymbolic -Wl,--dynamic-list=$(INTERPOSED) -Wl,-soname,$(@F) -o $@ $(filter %.o,$^) \
		$(LIB_LIBS) $(LIBS) $(SYSLIBS)

$(filter-out $(INJECT_PROGRAMS),$(TAP_PROGRAMS)): $(B)/%: $(B)/obj/%.o $(CHECK_A) $(PLUGIN_COMMON) $(TEST_SO)
	$(call say,LD)
	$(Q)mkdir -p $(@D) && $(LINK_EXE) -Wl,-rpath,$(B)/tests -o $@ $(filter %.o %.a,$^) -L$(B)/tests -lgradcomp-test \
		$(LIB_LIBS) $(LIBS) $(SYSLIBS)

# Tests that make calls of the library fail, which --wrap can do in what is linked alone:
# tests/support/inject/inject.h.
INJECTED = malloc free calloc realloc reallocarray aligned_alloc posix_memalign strdup strndup __asprintf_chk \
	open_memstream mmap eventfd memfd_create socket pthread_create send sendmsg recv recvmsg readv process_vm_readv poll \
	__poll_chk connect accept4
$(INJECT_PROGRAMS): LDFLAGS_EXE += $(INJECTED:%=-Wl,--wrap=%)
$(INJECT_PROGRAMS): $(B)/%: $(B)/obj/%.o $(call OBJ,$(SUPPORT_SRC)) $(CHECK_A) $(PLUGIN_COMMON) $(LIB_A)
	$(call say,LD)
	$(Q)mkdir -p $(@D) && $(LINK_EXE) -o $@ $^ $(LIB_LIBS) $(LIBS) $(SYSLIBS)

$(EXAMPLES): $(B)/%: $(B)/obj/%.o $(LIB_SO)
	$(call say,LD)
	$(Q)mkdir -p $(@D) && $(LINK_EXE) $(BUILD_RPATH) -o $@ $< -L$(B)/lib -lgradcomp $(LIBS) $(SYSLIBS)

$(TEST_PLUGINS): $(B)/%.so: $(B)/obj/%.o
	$(call say,LD)
	$(Q)mkdir -p $(@D) && $(LINK_SO) -o $@ $^ $(PLUGIN_LIBS) $(LIBS) -lm
$(B)/tests/plugins/faulty/own_symbol_sysv.so: PLUGIN_LIBS = -Wl,--hash-style=sysv

$(B)/gradcomp.pc: $(srcdir)/gradcomp.pc.in $(CONFIG_MK)
	$(call say,GEN)
	$(Q)sed -e 's|@REQUIRES_PRIVATE@||; s|@LIBS_PRIVATE@|-lm -ldl -pthread|' $(SUBST) $< >$@

$(B)/gradcomp-sdk.pc: $(srcdir)/gradcomp-sdk.pc.in $(CONFIG_MK)
	$(call say,GEN)
	$(Q)sed $(SUBST) $< >$@

SUBST = $(foreach v,VERSION $(DIRS),-e 's|@$(v)@|$($(v))|g')
DIRS = prefix exec_prefix bindir libexecdir libdir includedir sysconfdir localstatedir datarootdir datadir mandir \
	docdir slurmplugindir plugstackdir bashcompletiondir zshcompletiondir systemdunitdir

-include $(patsubst %.o,%.d,$(call OBJ,$(LIB_SRC) $(PMIX_SRC) $(VERBS_SRC) $(NFS_SRC) $(PLUGIN_SRC) $(PLUGIN_COMMON_SRC) $(SDK_SRC) $(SPANK_SRC) $(TOOL_SRC) \
	$(CHECK_SRC) $(TEST_SRC) $(TEST_PLUGIN_SRC) $(BENCH_SRC) $(EXAMPLE_SRC) $(DEVICE_SRC)) \
	$(CUDA_SRC:%.cu=$(B)/obj/%.cu.o) $(foreach m,$(MPIS),$(PMPI_SRC:%.c=$(B)/obj/$(m)/%.o)))

# configure or VERSION changed: the same configure command again.
$(CONFIG_MK): $(srcdir)/configure $(srcdir)/VERSION
	@echo "configure has changed: running $(@D)/config.status"
	$(Q)$(@D)/config.status >/dev/null && touch $@
