# What is installed, and how it goes in and out.

# etc/ is installed with the directories of this configuration filled in.
ETC = $(patsubst %.in,%,$(call find,etc/gradcomp.conf etc/gradcomp.conf.in etc/plugstack.conf.d/gradcomp.conf \
	etc/plugstack.conf.d/gradcomp.conf.in))
fill = $(Q)mkdir -p $(@D) && sed $(SUBST) $< >$@
$(B)/etc/%: $(srcdir)/etc/%.in $(CONFIG_MK)
	$(call say,GEN)
	$(fill)
$(B)/etc/%: $(srcdir)/etc/% $(CONFIG_MK)
	$(call say,GEN)
	$(fill)
PACKAGING = $(patsubst %.in,%,$(call find,packaging/*/*.in))
$(B)/packaging/%: $(srcdir)/packaging/%.in $(CONFIG_MK)
	$(call say,GEN)
	$(fill)
all: $(ETC:%=$(B)/%) $(PACKAGING:%=$(B)/%)

# The Python package, as it is installed: with what tells Python of its entry point.
python_src := $(if $(wildcard $(srcdir)/python/gradcomp),$(patsubst $(srcdir)/python/%,%,$(shell find $(srcdir)/python -name '*.py' -o -name py.typed)))
PYTHON = $(B)/lib/gradcomp/python
DIST_INFO = $(addprefix gradcomp-$(VERSION).dist-info/,METADATA entry_points.txt)
$(addprefix $(PYTHON)/,$(python_src)): $(PYTHON)/%: $(srcdir)/python/%
	$(Q)mkdir -p $(@D) && cp $< $@
$(PYTHON)/gradcomp-$(VERSION).dist-info/METADATA: $(srcdir)/python/METADATA.in $(CONFIG_MK)
	$(fill)
$(PYTHON)/gradcomp-$(VERSION).dist-info/entry_points.txt: $(srcdir)/python/entry_points.txt
	$(Q)mkdir -p $(@D) && cp $< $@
all: $(addprefix $(PYTHON)/,$(python_src) $(DIST_INFO))

# What is installed: words HOW:FROM:TO. HOW is a mode, `link`, or `conf` for a
# file that the site edits and that is therefore never overwritten.
doc_src := $(call find,README.md CHANGELOG.md LICENSE $(foreach e,md json svg,doc/*.$(e) doc/*/*.$(e)))
example_src := $(if $(wildcard $(srcdir)/examples),$(patsubst $(srcdir)/%,%,$(shell find $(srcdir)/examples -type f ! -name '*.pyc')))
man_src := $(foreach n,1 3 5 7 8,$(call find,doc/*.$(n) doc/man/*.$(n)))
section = $(subst .,,$(suffix $(1)))
modules = $(foreach f,$(2),0755:$(f):$(1)/$(notdir $(f)))
INSTALLED = \
	$(COMMAND:%=0755:%:$(bindir)/gradcomp) \
	0755:$(LIB_SO).$(VERSION):$(libdir)/libgradcomp.so.$(VERSION) \
	link:libgradcomp.so.$(VERSION):$(libdir)/libgradcomp.so.$(SOVERSION) \
	link:libgradcomp.so.$(VERSION):$(libdir)/libgradcomp.so \
	$(call modules,$(libdir)/gradcomp/compressors,$(filter $(B)/lib/gradcomp/compressors/%,$(PLUGINS))) \
	$(call modules,$(libdir)/gradcomp/collectives,$(filter $(B)/lib/gradcomp/collectives/%,$(PLUGINS))) \
	$(call modules,$(libdir)/gradcomp/bootstrap,$(PMIX_SO)) \
	$(call modules,$(libdir)/gradcomp/transport,$(VERBS_SO)) \
	$(call modules,$(libdir)/gradcomp/source,$(NFS_SO)) \
	$(call modules,$(libdir)/gradcomp/operators,$(CUDA_SO)) \
	$(call modules,$(libdir)/gradcomp/device,$(DEVICE_SO)) \
	$(call modules,$(libdir)/gradcomp/pmpi,$(PMPI_SO)) \
	$(call modules,$(slurmplugindir),$(SPANK_SO)) \
	$(foreach f,$(python_src) $(DIST_INFO),0644:$(PYTHON)/$(f):$(libdir)/gradcomp/python/$(f)) \
	$(foreach f,$(call find,include/gradcomp/*.h include/gradcomp/*.def),0644:$(srcdir)/$(f):$(includedir)/gradcomp/$(notdir $(f))) \
	$(foreach f,$(call find,include/gradcomp/sdk/*.h),0644:$(srcdir)/$(f):$(includedir)/gradcomp/sdk/$(notdir $(f))) \
	0644:$(SDK_A):$(libdir)/libgradcomp-sdk.a \
	0644:$(B)/gradcomp.pc:$(libdir)/pkgconfig/gradcomp.pc \
	0644:$(B)/gradcomp-sdk.pc:$(libdir)/pkgconfig/gradcomp-sdk.pc \
	$(patsubst %,conf:$(B)/%:$(sysconfdir)/gradcomp/gradcomp.conf,$(filter etc/gradcomp.conf,$(ETC))) \
	$(if $(SPANK_SO),$(patsubst %,conf:$(B)/%:$(plugstackdir)/gradcomp.conf,$(filter etc/plugstack.conf.d/%,$(ETC)))) \
	$(foreach f,$(call find,etc/models/*.model),0644:$(srcdir)/$(f):$(datadir)/gradcomp/models/$(notdir $(f))) \
	$(foreach f,$(call find,etc/models/families/*.family),0644:$(srcdir)/$(f):$(datadir)/gradcomp/models/families/$(notdir $(f))) \
	$(foreach f,$(call find,examples/plugin/*.c*),0644:$(srcdir)/$(f):$(datadir)/gradcomp/examples/$(notdir $(f))) \
	0644:$(srcdir)/etc/tmpfiles.conf:$(datadir)/gradcomp/tmpfiles.conf \
	0644:$(srcdir)/packaging/completion/gradcomp.bash:$(bashcompletiondir)/gradcomp \
	0644:$(srcdir)/packaging/completion/_gradcomp:$(zshcompletiondir)/_gradcomp \
	$(foreach f,gradcomp-config.cmake gradcomp-config-version.cmake,0644:$(B)/packaging/cmake/$(f):$(libdir)/cmake/gradcomp/$(f)) \
	0644:$(B)/packaging/modulefiles/gradcomp.lua:$(datadir)/gradcomp/modulefiles/gradcomp/$(VERSION).lua \
	0644:$(B)/packaging/modulefiles/gradcomp.tcl:$(datadir)/gradcomp/modulefiles/gradcomp/$(VERSION) \
	$(if $(SPANK_SO),0644:$(B)/packaging/systemd/gradcomp-cache-gc.service:$(systemdunitdir)/gradcomp-cache-gc.service) \
	$(if $(SPANK_SO),0644:$(srcdir)/packaging/systemd/gradcomp-cache-gc.timer:$(systemdunitdir)/gradcomp-cache-gc.timer) \
	$(foreach f,$(man_src),0644:$(srcdir)/$(f):$(mandir)/man$(call section,$(f))/$(notdir $(f))) \
	$(foreach f,$(filter %.md,$(doc_src)),0644:$(B)/installed/$(f):$(docdir)/$(f:doc/%=%)) \
	$(foreach f,$(filter-out %.md,$(doc_src)) $(example_src),0644:$(srcdir)/$(f):$(docdir)/$(f:doc/%=%))

all: $(addprefix $(B)/installed/,$(filter %.md,$(doc_src)))
$(B)/installed/%.md: $(srcdir)/%.md $(srcdir)/packaging/installed-links $(CONFIG_MK)
	$(Q)mkdir -p $(@D) && cd $(srcdir) && packaging/installed-links $*.md $(includedir) $(mandir) $(doc_src) $(example_src) >$@.new && mv $@.new $@

# A file is replaced by renaming: there is one at every moment, and who has the old one
# open keeps it. Users can read the folders made here, and only their owner can write
# them, whatever the umask.
install: all
	$(if $(filter command line,$(origin prefix)),$(error prefix=$(prefix): configure has fixed the folders; use configure --prefix=$(prefix), or DESTDIR))
	@set -e; umask 022; trap 'rm -f "$$new"' EXIT; for f in $(INSTALLED); do \
		how=$${f%%:*} to="$(DESTDIR)$${f##*:}" from=$${f#*:} from=$${from%:*}; \
		if [ "$$how" = conf ]; then how=0644; if [ -f "$$to" ] && ! cmp -s "$$from" "$$to"; then \
			echo "$$to is kept; the new one is $$to.new"; to=$$to.new; fi; fi; \
		new=$$to.installing; \
		mkdir -p "$${to%/*}"; \
		case $$how in \
		link) ln -sf "$$from" "$$new" ;; \
		*) install -m "$$how" "$$from" "$$new" ;; \
		esac; \
		mv -f "$$new" "$$to"; \
	done
	@# Users cannot write there, so each of their processes would compile it.
	@if [ -z '$(DESTDIR)' ] && command -v python3 >/dev/null; then umask 022; python3 -m compileall -qq '$(libdir)/gradcomp/python' || :; fi
	@echo "installed in $(DESTDIR)$(prefix)"

# A configuration file that was edited stays. Folders go when they are empty, but
# those that a system has anyway (/usr/local/bin) stay.
uninstall: $(ETC:%=$(B)/%)
	@set -e; for f in $(INSTALLED); do \
		to="$(DESTDIR)$${f##*:}" from=$${f#*:} from=$${from%:*}; \
		case $$f in conf:*) rm -f "$$to.new"; \
			if [ -f "$$to" ] && ! cmp -s "$$from" "$$to"; then echo "$$to was edited and stays"; continue; fi ;; \
		esac; \
		rm -f "$$to"; case $$f in *.py) rm -rf "$${to%/*}/__pycache__" ;; esac; \
	done; \
	for f in $(INSTALLED); do dir=$${f##*:}; \
		while dir=$${dir%/*}; [ -n "$$dir" ]; do \
			case "$(DESTDIR):$$dir" in \
			:*/gradcomp|:*/gradcomp/*) ;; \
			:/usr|:/usr/*) break ;; \
			:$(prefix)|:$(prefix)/*) ;; \
			:*) break ;; \
			esac; \
			rmdir "$(DESTDIR)$$dir" 2>/dev/null || [ ! -d "$(DESTDIR)$$dir" ] || break; \
		done; \
	done
