-- Health of clusterstack's objects for Argo CD, by their conditions: docs/gitops.md. One text for all kinds.
-- hack/argocd tries it with samples.json, and writes health.yaml from it.

-- Who is asked for something, or waits for a time: nothing is wrong, and nothing goes on by itself.
local waits = {Suspended = true, Paused = true, WaitsForApproval = true, Baking = true, SourceSuspended = true}
-- It is tried again, and is a failure all the same.
local fails = {
  HelmHookFailed = true, InternalError = true, ObjectsFailed = true, ShardClassUnserved = true,
  StageDeadlineExceeded = true, Unreadable = true,
}

local function health(status, message)
  return {status = status, message = message or ""}
end

if obj.spec ~= nil and obj.spec.suspend == true then
  return health("Suspended", "spec.suspend is set")
end
if obj.status == nil or obj.status.conditions == nil then
  return health("Progressing", "the operator has not seen it yet")
end
local seen = obj.status.observedGeneration
if seen ~= nil and obj.metadata.generation ~= nil and seen < obj.metadata.generation then
  return health("Progressing", "the operator has not seen the change of its spec yet")
end

local conditions = {}
for _, condition in ipairs(obj.status.conditions) do
  conditions[condition.type] = condition
end
local ready, stalled = conditions.Ready, conditions.Stalled

if stalled ~= nil and stalled.status == "True" then
  return health("Degraded", stalled.message)
end
if ready == nil then
  return health("Progressing", "the operator has not judged it yet")
end
if waits[ready.reason] then
  return health("Suspended", ready.message)
end
if ready.status == "True" then
  return health("Healthy", ready.message)
end
if fails[ready.reason] then
  return health("Degraded", ready.message)
end
return health("Progressing", ready.message)
