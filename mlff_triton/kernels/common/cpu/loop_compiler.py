"""Numba's compiler without the passes that loops do not need, which take two fifths of its time.

Numba makes each function callable from Python and from C, with code that converts every argument
and reports every error. That takes longer than many of our loops themselves. Loops take arrays
whose types are known when they are called, return nothing, and raise nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import typed_passes, types, untyped_passes
from numba.core.callwrapper import PyCallWrapper
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.lowering import Lower
from numba.core.registry import CPUDispatcher
from numba.core.types.containers import UniTuple

ADAPT = "numba_adapt_ndarray"
"""Function of Numba that describes an array of NumPy, without counting references to it."""
UNUSED = (
    untyped_passes.DeadBranchPrune,
    untyped_passes.FindLiterallyCalls,
    untyped_passes.InlineClosureLikes,
    untyped_passes.InlineInlinables,
    untyped_passes.LiteralPropagationSubPipelinePass,
    untyped_passes.LiteralUnroll,
    untyped_passes.MakeFunctionToJitFunction,
    untyped_passes.RewriteDynamicRaises,
    untyped_passes.RewriteSemanticConstants,
    untyped_passes.WithLifting,
    typed_passes.AnnotateTypes,
    typed_passes.DumpParforDiagnostics,
    typed_passes.InlineOverloads,
    typed_passes.NativeLowering,  # replaced
    typed_passes.NopythonRewrites,
    typed_passes.NoPythonSupportedFeatureValidation,
)
"""Passes for closures, array expressions, exceptions and others that loops do not contain."""


class _Call(PyCallWrapper):
    """Function that Python calls with the arguments of a loop, whose types it does not check."""

    def build_wrapper(self, api, builder, closure, args, kws):  # noqa: ARG002 (Numba's signature)
        context, given = self.context, []
        for k, kind in enumerate(self.fndesc.argtypes):
            if isinstance(kind, UniTuple) and kind.dtype == types.none:  # lanes
                given.append(ir.Constant(context.get_value_type(kind), None))
            else:
                given.append(self._value(api, builder, kind, api.tuple_getitem(args, k)))
        state = api.save_thread()
        call = context.call_conv.call_function
        arguments = self.fndesc.restype, self.fndesc.argtypes, given
        status, _ = call(builder, self.func, *arguments, attrs=("noinline",))
        api.restore_thread(state)
        with builder.if_then(status.is_ok, likely=True):
            api.return_none()
        api.err_set_none("PyExc_MemoryError")  # nothing else can fail
        builder.ret(api.get_null_object())

    def _value(self, api, builder, kind, item):
        """Return an argument as a value of LLVM."""
        if not isinstance(kind, types.Array):
            return api.to_native_value(kind, item).value
        array = self.context.make_array(kind)(self.context, builder)
        pointer = builder.bitcast(array._getpointer(), api.voidptr)
        signature = ir.FunctionType(ir.IntType(32), [api.pyobj, api.voidptr])
        builder.call(api._get_function(signature, ADAPT), (item, pointer))
        return array._getvalue()


class _Lower(Lower):
    """Writer of instructions, with our call in place of Numba's."""

    def create_cpython_wrapper(self, release_gil=False):
        context, described = self.context, self.fndesc
        module = context.create_module("call")
        kind = context.call_conv.get_function_type(described.restype, described.argtypes)
        function = ir.Function(module, kind, described.llvm_func_name)
        given = function, described, self.env, self.call_helper, release_gil
        _Call(context, module, *given).build()
        self.library.add_ir_module(module)


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(typed_passes.BaseNativeLowering):
    _name = "loop_lowering"

    @property
    def lowering_class(self):
        return _Lower


class LoopCompiler(CompilerBase):
    """Compiler of loops and of the functions that they call."""

    def define_pipelines(self):
        """Return Numba's passes without those in `UNUSED`."""
        passes = PassManager("loops")
        for each, name in DefaultPassBuilder.define_nopython_pipeline(self.state).passes:
            if each is typed_passes.NativeLowering:
                passes.add_pass(_Lowering, name)
            elif each not in UNUSED:
                passes.add_pass(each, name)
        passes.finalize()
        return [passes]


class LoopDispatcher(CPUDispatcher):
    """Dispatcher of Numba with our compiler, in other processes as well.

    Parameters
    ----------
    py_func : callable
        The loop, or a function that loops call.
    locals : dict, optional
        Types of variables; none are given.
    targetoptions : dict
        Options of `numba.njit`.
    """

    def __init__(
        self,
        py_func: Callable[..., Any],
        locals: Any = None,  # noqa: A002 (Numba's name)
        targetoptions: Any = None,
    ) -> None:
        super().__init__(py_func, locals or {}, targetoptions, pipeline_class=LoopCompiler)
