"""A code interpreter: one sandbox per conversation, state that lasts, nothing that leaks between them."""

from forkd import EvalError, Sandbox

with Sandbox(ttl_secs=600) as interpreter:
    interpreter.files.write("/root/data.csv", "month,sales\n1,10\n2,14\n3,21\n")
    interpreter.run_code("table = numpy.loadtxt('/root/data.csv', delimiter=',', skiprows=1)")
    print("mean:", interpreter.eval("float(table[:, 1].mean())"))
    try:
        interpreter.eval("table[7]")
    except EvalError as error:
        print("the model's code failed:", str(error).splitlines()[-1])
    print("and its state is still there:", interpreter.eval("table.shape"))
